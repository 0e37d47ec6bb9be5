"""Tasks that need nothing of each other, shared out over a machine's processors: copies of this process are
forked, each takes the next task that nobody has, and what they found is read back in order.

A copy has all that this process read and remembered, so that nothing is sent to it; what comes back is
pickled. Only where a fork is safe: on Linux, in a process of one thread. Anywhere else, and where one copy
dies, tasks are done here, so that answers never depend on it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeVar

MOST = 8
"""Processes of one question: further ones wait for those that have the longest task."""
NUMBER_BYTES = 4
Result = TypeVar("Result")
_inside = False
"""Whether this process is such a copy: it shares nothing out again."""


def share_out(
    tasks: Sequence[Callable[[], Result]], known: Sequence[object] = (), *, most: int | None = None
) -> list[Result]:
    """What each of ``tasks`` returns, in their order; raises what the first that fails raises.

    ``known``: objects that exist already, which results may name: they come back as themselves. ``most``: of
    so many processes, instead of one a processor. A task must change nothing that others read: what it
    changes in a copy is lost.
    """
    workers = min(len(tasks), most or min(usable_processors(), MOST))
    if workers < 2 or not may_fork():
        return [task() for task in tasks]
    named = {id(one): one for one in known}
    found: dict[int, Result] = {}
    with _queue_of_numbers(len(tasks)) as queue, _forked_copies(workers - 1, tasks, queue, named) as copies:
        found.update((number, tasks[number]()) for number in _next_numbers(queue))
        for pipe in copies:
            found.update(_read_results(pipe, named))
    return [found[number] if number in found else task() for number, task in enumerate(tasks)]


def usable_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_fork() -> bool:
    """Whether a copy of this process can do tasks: not of one whose other threads hold locks, nor of a
    copy.
    """
    threading = sys.modules.get("threading")
    alone = threading is None or threading.active_count() == 1
    return sys.platform == "linux" and alone and not _inside


@contextmanager
def _queue_of_numbers(count: int) -> Iterator[int]:
    """A pipe with the number of every task in it: whoever reads one has it."""
    reads, writes = os.pipe()
    try:
        os.set_blocking(writes, False)
        with suppress(BlockingIOError):  # more than a pipe holds: those are done here in the end
            for number in range(count):
                os.write(writes, number.to_bytes(NUMBER_BYTES, "little"))
        os.close(writes)
        yield reads
    finally:
        os.close(reads)


def _next_numbers(queue: int) -> Iterator[int]:
    while taken := os.read(queue, NUMBER_BYTES):
        yield int.from_bytes(taken, "little")


def _numbers_while_parent(queue: int, parent: int) -> Iterator[int]:
    """The numbers of tasks as long as somebody waits for them."""
    for number in _next_numbers(queue):
        if os.getppid() != parent:
            return
        yield number


@contextmanager
def _forked_copies(
    count: int, tasks: Sequence[Callable[[], Any]], queue: int, named: dict[int, object]
) -> Iterator[list[IO[bytes]]]:
    """The ends of pipes that as many copies write to; none outlives the block."""
    children, pipes, parent = list[int](), list[IO[bytes]](), os.getpid()
    try:
        for _ in range(count):
            reads, writes = os.pipe()
            pipes.append(os.fdopen(reads, "rb"))
            try:
                child = _fork()
            except OSError:  # no more processes are allowed: the tasks are done by those there are
                os.close(writes)
                pipes.pop().close()
                break
            if child == 0:
                _work_and_exit(tasks, queue, writes, named, parent)
            os.close(writes)
            children.append(child)
        yield pipes
    except BaseException:
        import signal

        for child in children:
            os.kill(child, signal.SIGKILL)
        raise
    finally:
        for pipe in pipes:
            pipe.close()
        for child in children:
            os.waitpid(child, 0)


def _fork() -> int:
    import warnings

    with warnings.catch_warnings():  # Python warns of threads of arithmetic libraries, which outlive forks
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work_and_exit(
    tasks: Sequence[Callable[[], Any]], queue: int, writes: int, named: dict[int, object], parent: int
) -> None:
    """Of a copy: its share of the tasks, written when there are no more. One that fails leaves all of them to
    the process that it is of.
    """
    global _inside  # noqa: PLW0603 it is of the process
    _inside = True
    status = 1
    try:
        found = [(number, tasks[number]()) for number in _numbers_while_parent(queue, parent)]
        with os.fdopen(writes, "wb") as pipe:
            _pickler(pipe, named).dump(found)
        status = 0
    except BaseException:  # noqa: BLE001, S110 whatever it is, it comes again where the task is done anew
        pass
    finally:
        os._exit(status)


def _pickler(pipe: IO[bytes], named: dict[int, object]) -> Any:
    import pickle

    class Pickler(pickle.Pickler):
        """Writes an object that both processes have as where it lies."""

        def persistent_id(self, held: Any) -> int | None:
            return id(held) if named.get(id(held)) is held and held is not None else None

    return Pickler(pipe, protocol=pickle.HIGHEST_PROTOCOL)


def _read_results(pipe: IO[bytes], named: dict[int, object]) -> list[tuple[int, Any]]:
    """What a copy found; nothing of one that died."""
    import pickle

    class Unpickler(pickle.Unpickler):
        """Reads what ``_pickler`` wrote."""

        def persistent_load(self, place: Any) -> object:
            return named[place]

    try:
        found: list[tuple[int, Any]] = Unpickler(pipe).load()
    except (EOFError, pickle.UnpicklingError):
        return []
    return found
