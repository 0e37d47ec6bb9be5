"""Pickles as plain data: an own machine for the few opcodes that plain values are written with.

What pickle.load runs is what a file asks for. Here nothing is imported, called or built that is not a dict,
list, tuple, text, number, truth or None; any other opcode is refused before it acts. Protocols 2 to 5
(Lib/pickletools.py of CPython says what each opcode does); what memsheet, PyTorch's Python and its C++ write.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.guard import open_regular
from memsheet.units import MIB

MAX_BYTES = 256 * MIB
MAX_DEPTH = 64
MAX_TEXT = MIB
ROOM, ROOM_PER_BYTE = 8 * MIB, 5
"""Memory that values may take: some, and so much for each byte that was read."""
CHUNK, CHUNK_BYTES = 8192, 16 * MIB
"""Opcodes between two looks at what stands on the stack; bytes that are read at once."""
FEWER = "record fewer events: torch.cuda.memory._record_memory_history(max_entries=500_000)"
CELL, HELD, HOLDER, ENTRY = 8, 16, 64, 72
SHAPES = 8
"""Orders of keys that are learned."""
TEXT = frozenset({str})
"""Bytes of a reference, of one on the stack or in the memo, of an empty container, of an entry of a dict."""
RUNS = {
    0x52: "REDUCE", 0x62: "BUILD", 0x63: "GLOBAL", 0x69: "INST", 0x6F: "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL",
    0x50: "PERSID", 0x51: "BINPERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x97: "NEXT_BUFFER",
}  # fmt: skip
"""Opcodes that name code or foreign objects."""

Taken = Callable[[dict[str, Any]], Any]
"""What stands for a dict as soon as it is full, or None where it stays: its own values are let go then."""
_FOUR, _TWO, _FLOAT, _EIGHT, _PLACE = (struct.Struct(f).unpack_from for f in ("<i", "<H", ">d", "<Q", "<I"))
_ONE_GET = re.compile(rb"h.|j.{4}", re.DOTALL).findall
_LONG = b"|".join(rb"\x8a%c.{%d}" % (n, n) for n in range(3, 9))
ALIKE = rb"(h.|" + _LONG + rb"|K.K.\x86\x94|K.|J.{4}|M..|j.{4}|N|\]\x94(?:\((?:h.|j.{4})++e)?)"
"""A value of a row: of the memo, a number, a pair of small ones, None, a list of values of the memo."""
_GETS: Any = re.compile(rb"(?:j.{4}){2,256}", re.DOTALL).match


@cache
def _places_reader(count: int) -> Callable[[bytes, int], tuple[int, ...]]:
    """What reads the numbers of so many LONG_BINGET in a row."""
    return struct.Struct("<" + "xI" * count).unpack_from


def is_pickle(data: bytes) -> bool:
    """Whether bytes begin as a pickle of a protocol that is read."""
    return len(data) > 2 and data[0] == 0x80 and 2 <= data[1] <= 5


def read_pickle(path: Path) -> bytes | None:
    """All bytes of a file that begins as a pickle; None of any other. Its limit is its own: a history is
    larger than all that a command reads of configurations.
    """
    with open_regular(path) as (file, size):
        head = file.read(3)
        if not is_pickle(head):
            return None
        if size > MAX_BYTES:
            raise input_error(
                "file",
                str(path),
                f"has {size:,} bytes, more than the {MAX_BYTES:,} of a snapshot that are read",
                FEWER,
            )
        parts = [head]
        while part := file.read(min(size, CHUNK_BYTES)):
            parts.append(part)
            if (size := size - len(part)) <= 0:
                break
    return b"".join(parts)


def parse_pickle(data: bytes, field: str, taken: Taken | None = None) -> Any:
    """The plain value that a pickle describes. ``taken``: see ``Taken``. Raises InputError, and nothing else,
    on anything that is no such value.
    """
    if len(data) > MAX_BYTES:
        raise input_error(field, None, f"is longer than the {MAX_BYTES:,} bytes that are read")
    if not is_pickle(data):
        raise input_error(field, None, "is no pickle of protocol 2 to 5")
    try:
        return _Machine(data, field, taken).read_value()
    except (IndexError, struct.error):
        raise input_error(field, None, "is a pickle that ends early", "was it copied completely?") from None
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise input_error(field, None, "is a pickle whose values do not fit their places") from None


class _Machine:
    """One pickle. ``memo``: values in the order in which they were put there, which is the only order that is
    taken; ``room``: bytes of memory that are left for values.
    """

    def __init__(self, data: bytes, field: str, taken: Taken | None) -> None:
        self.data, self.field, self.taken = data, field, taken
        self.memo: list[Any] = []
        self.shapes: list[tuple[tuple[str, ...], Any]] = []
        self.tried: set[tuple[str, ...]] = set()
        self.lists: dict[bytes, list[Any]] = {}
        self.spent: dict[str, Any] = {}
        self.room = ROOM

    def read_value(self) -> Any:  # noqa: PLR0915 one loop without calls for millions of opcodes
        """The value. Opcodes in the order of how often snapshots have them."""
        data, memo, stack, outer = self.data, self.memo, list[Any](), list[list[Any]]()
        at = 2
        while True:
            for _ in range(CHUNK):
                op = data[at]
                at += 1
                if op == 0x68:  # BINGET
                    stack.append(memo[data[at]])
                    at += 1
                elif op == 0x6A:  # LONG_BINGET, of which frames are long runs
                    if data[at + 4] == 0x6A:
                        run = _GETS(data, at - 1)
                        numbers = _places_reader((run.end() - at + 1) // 5)(data, at - 1)
                        stack += itemgetter(*numbers)(memo)
                        at = run.end()
                    else:
                        stack.append(memo[_PLACE(data, at)[0]])
                        at += 4
                elif op == 0x4B:  # BININT1
                    stack.append(data[at])
                    at += 1
                elif op == 0x8A:  # LONG1
                    end = at + 1 + data[at]
                    if end - at > 10:
                        raise self.refused_because("has a number of more than nine bytes")
                    stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
                    at = end
                elif op == 0x94:  # MEMOIZE
                    memo.append(stack[-1])
                elif op == 0x4A:  # BININT
                    stack.append(_FOUR(data, at)[0])
                    at += 4
                elif op == 0x4D:  # BININT2
                    stack.append(_TWO(data, at)[0])
                    at += 2
                elif op == 0x28:  # MARK
                    outer.append(stack)
                    stack = []
                elif op == 0x7D:  # EMPTY_DICT
                    for names, shape in self.shapes:
                        if (found := shape(data, at - 1)) is not None:
                            stack.append(self.shaped_row(names, found.groups()))
                            at = found.end()
                            break
                    else:
                        stack.append({})
                        self.room -= HOLDER
                elif op == 0x75:  # SETITEMS
                    pairs, stack = stack, outer.pop()
                    self.fill_dict(stack, pairs)
                elif op == 0x5D:  # EMPTY_LIST
                    stack.append([])
                    self.room -= HOLDER
                elif op == 0x65:  # APPENDS
                    values, stack = stack, outer.pop()
                    self.extend_list(stack[-1], values)
                elif op in {113, 114}:  # BINPUT, LONG_BINPUT
                    place = data[at] if op == 0x71 else _PLACE(data, at)[0]
                    at += 1 if op == 0x71 else 4
                    if place != len(memo):
                        raise self.refused_because("numbers its values out of order")
                    memo.append(stack[-1])
                elif op in {140, 88}:  # SHORT_BINUNICODE, BINUNICODE
                    start = at + (1 if op == 0x8C else 4)
                    length = data[at] if op == 0x8C else _PLACE(data, at)[0]
                    stack.append(self.read_text(start, length))
                    at = start + length
                elif op == 0x61:  # APPEND
                    value = stack.pop()
                    self.extend_list(stack[-1], [value])
                elif op == 0x73:  # SETITEM
                    pairs = stack[-2:]
                    del stack[-2:]
                    self.fill_dict(stack, pairs)
                elif op == 0x86:  # TUPLE2
                    stack[-2:] = [(stack[-2], stack[-1])]
                    self.room -= HOLDER
                elif op == 0x4E:  # NONE
                    stack.append(None)
                elif op in {136, 137}:  # NEWTRUE, NEWFALSE
                    stack.append(op == 0x88)
                elif op == 0x47:  # BINFLOAT
                    stack.append(_FLOAT(data, at)[0])
                    at += 8
                elif op == 0x95:  # FRAME
                    if at + 8 + _EIGHT(data, at)[0] > len(data):
                        raise IndexError
                    at += 8
                elif op in {41, 133, 135}:  # EMPTY_TUPLE, TUPLE1, TUPLE3
                    count = 0 if op == 0x29 else op - 0x84
                    self.close_tuple(stack, len(stack) - count)
                elif op == 0x74:  # TUPLE
                    values, stack = stack, outer.pop()
                    start = len(stack)
                    stack += values
                    self.close_tuple(stack, start)
                elif op == 0x2E:  # STOP
                    return self.finished_value(stack, outer, at)
                elif op in RUNS:
                    raise self.refused_because(
                        f"asks to build objects or run code ({RUNS[op]}, byte {at - 1:,}): never done"
                    )
                else:
                    raise self.refused_because(
                        f"has an opcode ({op:#04x} at byte {at - 1:,}) that no snapshot is written with"
                    )
            held = len(stack) + len(memo) + sum(map(len, outer))
            if len(outer) > MAX_DEPTH:
                raise self.refused_because(f"is nested deeper than {MAX_DEPTH} levels")
            if self.room + ROOM_PER_BYTE * at < held * HELD:
                raise self.refused_because("describes more than its size allows for")

    def refused_because(self, reason: str) -> InputError:
        hint = "torch.cuda.memory._dump_snapshot(file) writes plain values alone"
        return input_error(self.field, None, f"is a pickle that {reason}", hint)

    def read_text(self, start: int, length: int) -> str:
        if not 0 <= length <= MAX_TEXT:
            raise self.refused_because("has a text of more than a MiB")
        if start + length > len(self.data):
            raise IndexError
        self.room -= HOLDER + 3 * length
        return self.data[start : start + length].decode("utf-8", "replace")

    def fill_dict(self, stack: list[Any], pairs: list[Any]) -> None:
        """Keys and values of the dict on top, which is then replaced where something stands for it."""
        target = stack[-1]
        names = pairs[::2]
        if type(target) is not dict or len(pairs) & 1 or not set(map(type, names)) <= TEXT:
            raise TypeError
        target.update(zip(names, pairs[1::2], strict=True))
        instead = self.taken(target) if self.taken is not None else None
        if instead is None:
            self.room -= ENTRY * len(names)
        else:
            target.clear()
            stack[-1] = instead
            if len(self.tried) < SHAPES and tuple(names) not in self.tried:
                self.learn_shape(tuple(names))

    # ---- dicts alike, which are nearly all of a history ----------------------------------------------------

    def learn_shape(self, names: tuple[str, ...]) -> None:
        """How dicts look that have the same keys in the same order, where every key is one of the memo: one
        match stands for some thirty opcodes.
        """
        self.tried.add(names)
        wanted = set(map(id, names))
        places = {id(value): place for place, value in enumerate(self.memo) if id(value) in wanted}
        if len(places) == len(names):
            keys = (
                bytes((0x68, at)) if at < 256 else b"j" + at.to_bytes(4, "little")
                for at in (places[id(name)] for name in names)
            )
            pattern = rb"\}\x94\(" + b"".join(re.escape(key) + ALIKE for key in keys) + b"u"
            self.shapes.append((names, re.compile(pattern, re.DOTALL).match))

    def shaped_row(self, names: tuple[str, ...], values: tuple[bytes, ...]) -> Any:
        """What stands for a dict of the shape that was learned."""
        self.memo.append(self.spent)  # nobody refers to a row
        found = dict(zip(names, map(self.decoded_value, values), strict=True))
        instead = self.taken(found) if self.taken is not None else None
        if instead is None:
            raise self.refused_because("has rows that are not alike")
        return instead

    def decoded_value(self, code: bytes) -> Any:
        """One value as ``ALIKE`` finds it."""
        op = code[0]
        if op == 0x68:
            return self.memo[code[1]]
        if op == 0x8A:
            return int.from_bytes(code[2:], "little", signed=True)
        if op == 0x5D:
            return self.list_of_places(code)
        if op == 0x4E:
            return None
        if op == 0x6A:
            return self.memo[_PLACE(code, 1)[0]]
        if code[-1] == 0x94 and len(code) > 5:  # TUPLE2 of two small numbers
            self.memo.append((code[1], code[3]))
            return self.memo[-1]
        return code[1] if op == 0x4B else _TWO(code, 1)[0] if op == 0x4D else _FOUR(code, 1)[0]

    def list_of_places(self, code: bytes) -> list[Any]:
        """A list of values of the memo; those of the same opcodes are one list."""
        found = self.lists.get(code)
        if found is None:
            places = (one[1] if one[0] == 0x68 else _PLACE(one, 1)[0] for one in _ONE_GET(code[3:-1]))
            found = [self.memo[place] for place in places]
            self.room -= HOLDER + 2 * CELL * len(found) + len(code)
            self.lists[code] = found
        self.memo.append(found)
        return found

    def extend_list(self, target: Any, values: list[Any]) -> None:
        if type(target) is not list:
            raise TypeError
        self.room -= CELL * len(values)
        target += values

    def close_tuple(self, stack: list[Any], start: int) -> None:
        """The values from ``start`` on as one tuple."""
        if start < 0:
            raise IndexError
        stack[start:] = [tuple(stack[start:])]
        self.room -= HOLDER + CELL * len(stack[start])

    def finished_value(self, stack: list[Any], outer: list[list[Any]], at: int) -> Any:
        if len(stack) != 1 or outer:
            raise self.refused_because("does not come to one value")
        if at != len(self.data):
            raise self.refused_because("has more behind its end")
        return stack[0]
