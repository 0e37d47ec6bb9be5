/* Requests and releases of a whole script, played through the caching allocator's rules: what caching.py, memory.py,
   pages.py and plain_loop.py of the folder above do, which say where each rule is from, and which are the reference.

   Settings that are rare (max_split_size, garbage collection) are left to them, and so is whatever is refused here.
   Plain C99 and Python's stable ABI of 3.11; nothing is kept between calls. */

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INTERFACE 2 /* what memsheet/allocator/compiled/__init__.py expects */

#define MIB ((int64_t)1 << 20)
#define ROUNDING ((int64_t)512)
#define SMALL MIB
#define SMALL_SEGMENT (2 * MIB)
#define LARGE (10 * MIB)
#define LARGE_ROUNDING (2 * MIB)
#define ADDRESS_SPACE ((int64_t)1 << 44)
/* Of a request, a capacity and all addresses of a pool: beyond it sums could leave 64 bits. */
#define MOST_BYTES ((int64_t)1 << 60)
#define MOST_BLOCKS INT32_MAX

enum { NO_BLOCK = -1, RELEASED = -2 };
enum { BUSY, FREE, UNMAPPED, GONE };
/* How a play goes on. */
enum { DONE, DIED, NO_MEMORY, TOO_LARGE, BROKEN, TWICE, OUTSIDE };

typedef struct {
    int64_t size, address;
    int32_t before, after; /* in the segment; NO_BLOCK at its ends */
    int32_t pool;
    int32_t state;
} Block;

/* A free block at its place in the order of size and address. */
typedef struct {
    int64_t size, address;
    int32_t block;
} Place;

typedef struct {
    Place *free;
    int32_t *unmapped; /* by address */
    int32_t free_count, free_room, unmapped_count, unmapped_room;
    int64_t top, page, keeps;
} Pool;

typedef struct {
    Block *blocks;
    int32_t *spare; /* places in blocks that others may take; as many as there are blocks */
    int32_t block_count, block_room, spare_count;
    Pool *pools; /* of each stream the large and the small one */
    int32_t pool_count;
    int64_t reserved, allocated, retries, capacity, limit, large_segment;
    int expandable;
} Allocator;

static int64_t round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

/* ---- free blocks in order ---------------------------------------------------------------------------------- */

static int32_t first_not_before(const Pool *pool, int64_t size, int64_t address) {
    int32_t low = 0, high = pool->free_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        const Place *at = &pool->free[middle];
        if (at->size < size || (at->size == size && at->address < address)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int put_free(Allocator *a, int32_t number) {
    Block *block = &a->blocks[number];
    Pool *pool = &a->pools[block->pool];
    if (pool->free_count == pool->free_room) {
        if (pool->free_room > MOST_BLOCKS / 2) return TOO_LARGE;
        int32_t room = pool->free_room ? 2 * pool->free_room : 64;
        Place *grown = realloc(pool->free, (size_t)room * sizeof(Place));
        if (!grown) return NO_MEMORY;
        pool->free = grown;
        pool->free_room = room;
    }
    int32_t at = first_not_before(pool, block->size, block->address);
    memmove(pool->free + at + 1, pool->free + at, (size_t)(pool->free_count - at) * sizeof(Place));
    pool->free[at] = (Place){block->size, block->address, number};
    pool->free_count++;
    block->state = FREE;
    return DONE;
}

static void take_place(Allocator *a, Pool *pool, int32_t at) {
    a->blocks[pool->free[at].block].state = BUSY;
    pool->free_count--;
    memmove(pool->free + at, pool->free + at + 1, (size_t)(pool->free_count - at) * sizeof(Place));
}

static int take_free(Allocator *a, int32_t number) {
    Block *block = &a->blocks[number];
    Pool *pool = &a->pools[block->pool];
    int32_t at = first_not_before(pool, block->size, block->address);
    if (at >= pool->free_count || pool->free[at].block != number) return BROKEN;
    take_place(a, pool, at);
    return DONE;
}

/* ---- blocks ------------------------------------------------------------------------------------------------ */

/* A block in no pool and between no others; what ``blocks`` pointed at may have moved. */
static int new_block(Allocator *a, int32_t pool, int64_t address, int64_t size, int32_t *number) {
    if (a->spare_count) {
        *number = a->spare[--a->spare_count];
    } else {
        if (a->block_count == a->block_room) {
            if (a->block_room > MOST_BLOCKS / 2) return TOO_LARGE;
            int32_t room = a->block_room ? 2 * a->block_room : 256;
            Block *grown = realloc(a->blocks, (size_t)room * sizeof(Block));
            if (!grown) return NO_MEMORY;
            a->blocks = grown;
            int32_t *spare = realloc(a->spare, (size_t)room * sizeof(int32_t));
            if (!spare) return NO_MEMORY;
            a->spare = spare;
            a->block_room = room;
        }
        *number = a->block_count++;
    }
    a->blocks[*number] = (Block){size, address, NO_BLOCK, NO_BLOCK, pool, BUSY};
    return DONE;
}

static void drop_block(Allocator *a, int32_t number) {
    a->blocks[number].state = GONE;
    a->spare[a->spare_count++] = number;
}

/* ``number`` keeps its first ``size`` bytes; ``rest`` is in no pool. */
static int split_block(Allocator *a, int32_t number, int64_t size, int32_t *rest) {
    Block whole = a->blocks[number];
    int status = new_block(a, whole.pool, whole.address + size, whole.size - size, rest);
    if (status) return status;
    a->blocks[*rest].before = number;
    a->blocks[*rest].after = whole.after;
    if (whole.after != NO_BLOCK) a->blocks[whole.after].before = *rest;
    a->blocks[number].after = *rest;
    a->blocks[number].size = size;
    return DONE;
}

/* ``number`` takes in the one after it, which is in no pool any more. */
static void merge_next(Allocator *a, int32_t number) {
    int32_t gone = a->blocks[number].after, beyond = a->blocks[gone].after;
    a->blocks[number].size += a->blocks[gone].size;
    a->blocks[number].after = beyond;
    if (beyond != NO_BLOCK) a->blocks[beyond].before = number;
    drop_block(a, gone);
}

static int put_back(Allocator *a, int32_t *number) {
    int32_t before = a->blocks[*number].before, after = a->blocks[*number].after;
    int status;
    if (after != NO_BLOCK && a->blocks[after].state == FREE) {
        if ((status = take_free(a, after))) return status;
        merge_next(a, *number);
    }
    if (before != NO_BLOCK && a->blocks[before].state == FREE) {
        if ((status = take_free(a, before))) return status;
        merge_next(a, before);
        *number = before;
    }
    return put_free(a, *number);
}

/* Addresses for a new segment, as one block in no pool. */
static int new_segment(Allocator *a, int32_t pool, int64_t size, int32_t *number) {
    Pool *own = &a->pools[pool];
    if (size > MOST_BYTES - own->top) return TOO_LARGE;
    int status = new_block(a, pool, own->top, size, number);
    if (!status) own->top += size;
    return status;
}

/* ---- expandable segments ----------------------------------------------------------------------------------- */

static int32_t unmapped_place(const Allocator *a, const Pool *pool, int64_t address) {
    int32_t low = 0, high = pool->unmapped_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (a->blocks[pool->unmapped[middle]].address < address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int mark_unmapped(Allocator *a, int32_t number) {
    Pool *pool = &a->pools[a->blocks[number].pool];
    if (pool->unmapped_count == pool->unmapped_room) {
        if (pool->unmapped_room > MOST_BLOCKS / 2) return TOO_LARGE;
        int32_t room = pool->unmapped_room ? 2 * pool->unmapped_room : 16;
        int32_t *grown = realloc(pool->unmapped, (size_t)room * sizeof(int32_t));
        if (!grown) return NO_MEMORY;
        pool->unmapped = grown;
        pool->unmapped_room = room;
    }
    int32_t at = unmapped_place(a, pool, a->blocks[number].address);
    memmove(pool->unmapped + at + 1, pool->unmapped + at, (size_t)(pool->unmapped_count - at) * sizeof(int32_t));
    pool->unmapped[at] = number;
    pool->unmapped_count++;
    a->blocks[number].state = UNMAPPED;
    return DONE;
}

static int take_unmapped(Allocator *a, int32_t number) {
    Pool *pool = &a->pools[a->blocks[number].pool];
    int32_t at = unmapped_place(a, pool, a->blocks[number].address);
    if (at >= pool->unmapped_count || pool->unmapped[at] != number) return BROKEN;
    pool->unmapped_count--;
    memmove(pool->unmapped + at, pool->unmapped + at + 1, (size_t)(pool->unmapped_count - at) * sizeof(int32_t));
    return DONE;
}

static int has_room(const Allocator *a, int32_t first, int64_t size) {
    int64_t room = 0;
    int32_t at = first;
    for (;;) {
        const Block *block = &a->blocks[at];
        if (room + block->size >= size) return 1;
        if (block->after == NO_BLOCK || a->blocks[block->after].state == BUSY) return 0;
        room += block->size;
        at = block->after;
    }
}

static int find_expandable(Allocator *a, int32_t pool, int64_t size, int32_t *number) {
    const Pool *own = &a->pools[pool];
    for (int32_t at = 0; at < own->unmapped_count; at++) {
        int32_t first = own->unmapped[at], before = a->blocks[first].before;
        if (before != NO_BLOCK && a->blocks[before].state == FREE) first = before;
        if (has_room(a, first, size)) {
            *number = first;
            return DONE;
        }
    }
    int64_t space = a->capacity < 0 ? ADDRESS_SPACE : a->capacity + a->capacity / 8;
    int status = new_segment(a, pool, round_up(space > size ? space : size, own->page), number);
    return status ? status : mark_unmapped(a, *number);
}

/* The free block in which ``size`` bytes at the start of ``number`` come to lie, in whole pages. */
static int map_pages(Allocator *a, int32_t *number, int64_t size) {
    if (a->blocks[*number].state != UNMAPPED) return BROKEN;
    int64_t mapped = round_up(size, a->pools[a->blocks[*number].pool].page);
    if (a->capacity >= 0 && a->reserved + mapped > a->capacity) return DIED;
    if (mapped > MOST_BYTES - a->reserved) return TOO_LARGE;
    a->reserved += mapped;
    int status = take_unmapped(a, *number);
    if (status) return status;
    if (mapped < a->blocks[*number].size) {
        int32_t rest;
        if ((status = split_block(a, *number, mapped, &rest))) return status;
        if ((status = mark_unmapped(a, rest))) return status;
    }
    a->blocks[*number].state = BUSY;
    return put_back(a, number);
}

static int64_t lesser(int64_t one, int64_t other) { return one < other ? one : other; }

static int expand_segment(Allocator *a, int32_t pool, int64_t size, int32_t *number) {
    int status = find_expandable(a, pool, size, number);
    if (status) return status;
    if (a->blocks[*number].state == UNMAPPED) {
        if ((status = map_pages(a, number, lesser(a->blocks[*number].size, size)))) return status;
    }
    while (a->blocks[*number].size < size) {
        int32_t next = a->blocks[*number].after;
        if (next == NO_BLOCK) return BROKEN;
        if ((status = map_pages(a, &next, lesser(size - a->blocks[*number].size, a->blocks[next].size))))
            return status;
        *number = next;
    }
    return take_free(a, *number);
}

/* The whole pages inside a free block go back to the device. */
static int unmap_pages(Allocator *a, int32_t number) {
    int64_t address = a->blocks[number].address, size = a->blocks[number].size;
    int64_t page = a->pools[a->blocks[number].pool].page;
    int64_t start = round_up(address, page), end = (address + size) / page * page;
    int32_t rest;
    int status;
    if (start >= end) return DONE;
    if ((status = take_free(a, number))) return status;
    if (start > address) {
        if ((status = split_block(a, number, start - address, &rest))) return status;
        if ((status = put_free(a, number))) return status;
        number = rest;
    }
    if (a->blocks[number].address + a->blocks[number].size > end) {
        if ((status = split_block(a, number, end - a->blocks[number].address, &rest))) return status;
        if ((status = put_free(a, rest))) return status;
    }
    a->reserved -= end - start;
    int32_t before = a->blocks[number].before, after = a->blocks[number].after;
    if (after != NO_BLOCK && a->blocks[after].state == UNMAPPED) {
        if ((status = take_unmapped(a, after))) return status;
        merge_next(a, number);
    }
    if (before != NO_BLOCK && a->blocks[before].state == UNMAPPED) {
        if ((status = take_unmapped(a, before))) return status;
        merge_next(a, before);
        number = before;
    }
    if (a->blocks[number].before == NO_BLOCK && a->blocks[number].after == NO_BLOCK) {
        drop_block(a, number);
        return DONE;
    }
    return mark_unmapped(a, number);
}

/* ---- from the device and back to it ------------------------------------------------------------------------ */

static int release_pool(Allocator *a, Pool *pool) {
    if (!a->expandable) {
        int32_t kept = 0;
        for (int32_t at = 0; at < pool->free_count; at++) {
            Place place = pool->free[at];
            const Block *block = &a->blocks[place.block];
            if (block->before == NO_BLOCK && block->after == NO_BLOCK) {
                a->reserved -= block->size;
                drop_block(a, place.block);
            } else {
                pool->free[kept++] = place;
            }
        }
        pool->free_count = kept;
        return DONE;
    }
    int32_t count = pool->free_count;
    if (!count) return DONE;
    Place *were = malloc((size_t)count * sizeof(Place));
    if (!were) return NO_MEMORY;
    memcpy(were, pool->free, (size_t)count * sizeof(Place));
    int status = DONE;
    for (int32_t at = 0; at < count && !status; at++) status = unmap_pages(a, were[at].block);
    free(were);
    return status;
}

static int64_t segment_bytes(const Allocator *a, int64_t size) {
    if (size <= SMALL) return SMALL_SEGMENT;
    return size < LARGE ? a->large_segment : round_up(size, LARGE_ROUNDING);
}

static int allocate_segment(Allocator *a, int32_t pool, int64_t size, int32_t *number) {
    int64_t segment = segment_bytes(a, size);
    if (a->limit >= 0 && a->reserved + segment > a->limit) return DIED;
    if (a->expandable) return expand_segment(a, pool, size, number);
    if (a->capacity >= 0 && a->reserved + segment > a->capacity) return DIED;
    int status = new_segment(a, pool, segment, number);
    if (status) return status;
    if (segment > MOST_BYTES - a->reserved) return TOO_LARGE;
    a->reserved += segment;
    return DONE;
}

static int grow_pool(Allocator *a, int32_t pool, int64_t size, int32_t *number) {
    int status = allocate_segment(a, pool, size, number);
    if (status != DIED) return status;
    for (int32_t at = 0; at < a->pool_count; at++)
        if ((status = release_pool(a, &a->pools[at]))) return status;
    a->retries++;
    return allocate_segment(a, pool, size, number);
}

/* ---- requests and releases --------------------------------------------------------------------------------- */

static int64_t expandable_size(const Allocator *a, const Block *block) {
    int32_t after = block->after;
    int more = after != NO_BLOCK && a->blocks[after].state == UNMAPPED;
    return block->size + (more ? a->blocks[after].size : 0);
}

/* In order of size, the last before one that counts more with the unmapped addresses behind it. */
static int32_t least_expandable(const Allocator *a, const Pool *pool, int32_t at) {
    int64_t size = expandable_size(a, &a->blocks[pool->free[at].block]);
    for (int32_t next = at + 1; next < pool->free_count; next++) {
        int64_t larger = expandable_size(a, &a->blocks[pool->free[next].block]);
        if (larger >= size) break;
        at = next;
        size = larger;
    }
    return at;
}

static int allocate_block(Allocator *a, int32_t pool, int64_t size, int32_t *number) {
    Pool *own = &a->pools[pool];
    int32_t at = first_not_before(own, size, 0);
    int status;
    if (at < own->free_count) {
        if (a->expandable) at = least_expandable(a, own, at);
        *number = own->free[at].block;
        take_place(a, own, at);
    } else if ((status = grow_pool(a, pool, size, number))) {
        return status;
    }
    if (a->blocks[*number].size - size > own->keeps) {
        int32_t rest;
        if ((status = split_block(a, *number, size, &rest))) return status;
        if ((status = put_free(a, rest))) return status;
    }
    a->allocated += a->blocks[*number].size;
    return DONE;
}

typedef struct {
    int64_t before, most, in_blocks;
} Marks;

static int play_events(Allocator *a, const int64_t *events, Py_ssize_t count, const int64_t *sizes,
                       const uint8_t *streams, int32_t *owned, Py_ssize_t requests, Py_ssize_t start, Marks *found) {
    int64_t most = 0, held = 0;
    Py_ssize_t at = 0;
    int begun = 0, status;
    for (;; at++) {
        if (!begun && (at > start || at == count)) { /* what was reserved before, and has gone back, does not count */
            found->before = most;
            most = a->reserved;
            held = a->allocated;
            begun = 1;
        }
        if (at == count) break;
        int64_t event = events[at];
        int64_t request = event < 0 ? ~event : event;
        if (request >= requests) return OUTSIDE;
        if (event < 0) {
            int32_t number = owned[request];
            if (number == RELEASED) return TWICE;
            if (number == NO_BLOCK) continue;
            owned[request] = RELEASED;
            a->allocated -= a->blocks[number].size;
            if ((status = put_back(a, &number))) return status;
            continue;
        }
        int64_t size = round_up(sizes[request], ROUNDING);
        if (!size) continue;
        int32_t number = NO_BLOCK;
        if ((status = allocate_block(a, 2 * streams[request] + (size <= SMALL), size, &number))) return status;
        owned[request] = number;
        if (a->reserved > most) most = a->reserved;
        if (a->allocated > held) held = a->allocated;
    }
    found->most = most;
    found->in_blocks = held;
    return DONE;
}

/* ---- for Python -------------------------------------------------------------------------------------------- */

static void free_allocator(Allocator *a) {
    for (int32_t at = 0; a->pools && at < a->pool_count; at++) {
        free(a->pools[at].free);
        free(a->pools[at].unmapped);
    }
    free(a->pools);
    free(a->blocks);
    free(a->spare);
}

static int make_pools(Allocator *a, const uint8_t *streams, Py_ssize_t requests) {
    int32_t most = 0;
    for (Py_ssize_t at = 0; at < requests; at++)
        if (streams[at] > most) most = streams[at];
    a->pools = calloc(2 * ((size_t)most + 1), sizeof(Pool));
    if (!a->pools) return NO_MEMORY;
    a->pool_count = 2 * (most + 1);
    for (int32_t at = 0; at < a->pool_count; at++) {
        int small = at % 2;
        a->pools[at].page = small ? SMALL_SEGMENT : a->large_segment;
        a->pools[at].keeps = small || a->expandable ? ROUNDING - 1 : SMALL;
    }
    return DONE;
}

static PyObject *raise_status(int status) {
    switch (status) {
    case NO_MEMORY: return PyErr_NoMemory();
    case TOO_LARGE: PyErr_SetString(PyExc_OverflowError, "more bytes or blocks than are counted here"); break;
    case TWICE: PyErr_SetString(PyExc_ValueError, "an event releases what was released before"); break;
    case OUTSIDE: PyErr_SetString(PyExc_IndexError, "an event is of a request that is not there"); break;
    default: PyErr_SetString(PyExc_SystemError, "the lists of blocks do not agree"); break;
    }
    return NULL;
}

/* ``item``: bytes of one number, which are all in a row. */
static int open_buffer(PyObject *object, Py_buffer *view, Py_ssize_t item, const char *name) {
    if (PyObject_GetBuffer(object, view, PyBUF_CONTIG_RO) < 0) return -1;
    if (view->itemsize == item && (view->len == 0 || (uintptr_t)view->buf % (size_t)item == 0)) return 0;
    PyBuffer_Release(view);
    PyErr_Format(PyExc_TypeError, "%s: numbers of %zd bytes, each at its place", name, item);
    return -1;
}

static PyObject *play_script(PyObject *module, PyObject *args) {
    PyObject *events_given, *sizes_given, *streams_given, *result = NULL;
    Py_buffer events, sizes, streams;
    Py_ssize_t start;
    long long capacity, limit, large_segment;
    Allocator a = {0};
    Marks found = {0};
    int32_t *owned = NULL;
    int status = DONE;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOnpLLL", &events_given, &sizes_given, &streams_given, &start, &a.expandable,
                          &large_segment, &capacity, &limit))
        return NULL;
    if (capacity > MOST_BYTES / 2 || limit > MOST_BYTES / 2 || large_segment < 1 || large_segment > ADDRESS_SPACE)
        return raise_status(TOO_LARGE);
    a.capacity = capacity;
    a.limit = limit;
    a.large_segment = large_segment;
    if (open_buffer(events_given, &events, sizeof(int64_t), "events") < 0) return NULL;
    if (open_buffer(sizes_given, &sizes, sizeof(int64_t), "sizes") < 0) goto with_events;
    if (open_buffer(streams_given, &streams, 1, "streams") < 0) goto with_sizes;
    Py_ssize_t count = events.len / events.itemsize, requests = sizes.len / sizes.itemsize;
    if (streams.len != requests) {
        PyErr_SetString(PyExc_ValueError, "streams: not as many as sizes");
        goto with_streams;
    }
    for (Py_ssize_t at = 0; at < requests; at++) {
        int64_t size = ((const int64_t *)sizes.buf)[at];
        if (size < 0 || size > MOST_BYTES / 2) {
            raise_status(TOO_LARGE);
            goto with_streams;
        }
    }
    owned = malloc((size_t)(requests ? requests : 1) * sizeof(int32_t));
    if (!owned) {
        PyErr_NoMemory();
        goto with_streams;
    }
    for (Py_ssize_t at = 0; at < requests; at++) owned[at] = NO_BLOCK;
    status = make_pools(&a, streams.buf, requests);
    if (!status)
        status = play_events(&a, events.buf, count, sizes.buf, streams.buf, owned, requests, start, &found);
    free_allocator(&a);
    free(owned);
    if (status == DONE)
        result = Py_BuildValue("(LLLL)", (long long)found.most, (long long)found.in_blocks, (long long)a.retries,
                               (long long)found.before);
    else if (status == DIED)
        result = Py_NewRef(Py_None);
    else
        raise_status(status);
with_streams:
    PyBuffer_Release(&streams);
with_sizes:
    PyBuffer_Release(&sizes);
with_events:
    PyBuffer_Release(&events);
    return result;
}

static PyObject *shift_events(PyObject *module, PyObject *args) {
    PyObject *given, *result;
    Py_buffer events;
    long long by;
    (void)module;
    if (!PyArg_ParseTuple(args, "OL", &given, &by)) return NULL;
    if (by < 0 || by > MOST_BYTES) return raise_status(TOO_LARGE);
    if (open_buffer(given, &events, sizeof(int64_t), "events") < 0) return NULL;
    result = PyBytes_FromStringAndSize(NULL, events.len);
    char *to = result ? PyBytes_AsString(result) : NULL;
    for (Py_ssize_t at = 0; to && at < events.len / events.itemsize; at++) {
        int64_t event = ((const int64_t *)events.buf)[at];
        if (event > MOST_BYTES || event < -MOST_BYTES) {
            Py_CLEAR(result);
            raise_status(TOO_LARGE);
            break;
        }
        event += event < 0 ? -by : by;
        memcpy(to + (size_t)at * sizeof(event), &event, sizeof(event));
    }
    PyBuffer_Release(&events);
    return result;
}

static PyObject *live_peak(PyObject *module, PyObject *args) {
    PyObject *events_given, *sizes_given;
    Py_buffer events, sizes;
    Py_ssize_t start;
    int64_t live = 0, most = 0;
    int status = DONE, found = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOn", &events_given, &sizes_given, &start)) return NULL;
    if (open_buffer(events_given, &events, sizeof(int64_t), "events") < 0) return NULL;
    if (open_buffer(sizes_given, &sizes, sizeof(int64_t), "sizes") < 0) {
        PyBuffer_Release(&events);
        return NULL;
    }
    for (Py_ssize_t at = 0; at < events.len / events.itemsize && !status; at++) {
        int64_t event = ((const int64_t *)events.buf)[at], request = event < 0 ? ~event : event;
        if (request >= sizes.len / sizes.itemsize) {
            status = OUTSIDE;
            break;
        }
        int64_t size = ((const int64_t *)sizes.buf)[request];
        if (size < 0 || size > MOST_BYTES || live > MOST_BYTES || live < -MOST_BYTES) {
            status = TOO_LARGE;
            break;
        }
        live += event < 0 ? -size : size;
        if (at >= start && (!found || live > most)) {
            most = live;
            found = 1;
        }
    }
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&events);
    return status ? raise_status(status) : PyLong_FromLongLong(most);
}

static PyMethodDef METHODS[] = {
    {"play_script", play_script, METH_VARARGS,
     "play_script(events, sizes, streams, start, expandable, large_segment, capacity, limit): the most bytes reserved\n"
     "and the most in blocks after event ``start``, retries, and the most reserved up to it; None where memory runs\n"
     "out. ``events`` and ``sizes`` are buffers of 64 bits each, ``streams`` of bytes; nothing is made for a\n"
     "size of 0; a capacity or limit below 0 is none. OverflowError for more than it counts, ValueError for what is\n"
     "released twice, IndexError for a request that is not there."},
    {"shift_events", shift_events, METH_VARARGS,
     "shift_events(events, by): the same of requests whose numbers are higher by so many, as bytes. OverflowError as\n"
     "above, and where it is less than 0."},
    {"live_peak", live_peak, METH_VARARGS,
     "live_peak(events, sizes, start): the most bytes asked for and not released, from event ``start`` on; 0 where\n"
     "there is none. Errors as above."},
    {NULL, NULL, 0, NULL},
};

static int add_interface(PyObject *module) { return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE); }

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, add_interface}, {0, NULL}};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "play", .m_size = 0, .m_methods = METHODS, .m_slots = SLOTS};

PyMODINIT_FUNC PyInit_play(void) { return PyModuleDef_Init(&MODULE); }
