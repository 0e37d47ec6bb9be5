"""Children that are forked from one process that has imported torch, transformers and what traces: a start of
Python with all of that takes six seconds of the processor, a fork none.

A test takes part by the fixture ``warm_children`` (conftest.py): what ``memsheet.trace.parent`` starts is
then forked, with the same request on stdin, the same files, environment and limits, in a session of its own.
Tests of the start itself do not. ``printed`` runs a script of this folder in the same way.

As a program: the process that forks. It is asked over a socket, its stdin, and ends with it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace

HERE = Path(__file__).parent
CHILD = "memsheet.trace.child"
IMPORTED = (
    "torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.profiler", "transformers.models.llama.modeling_llama",
    "memsheet.account", "memsheet.readers.hf_config", "memsheet.resolve", "memsheet.timeline", "memsheet.trace.requests",
    "memsheet.trace.distributed_job", "memsheet.measure.requests", CHILD,
)  # fmt: skip
ASKED_BYTES = 2**18


# ---- who asks ----------------------------------------------------------------------------------------------


@cache
def server() -> socket.socket:
    """The socket of the process that forks, which is started once and ends with this one."""
    from memsheet.trace.parent import PYTHON, environment_of

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen([*PYTHON, str(HERE / "warm_children.py")], stdin=theirs, env=environment_of({}))
    theirs.close()
    atexit.register(ours.close)
    return ours


class WarmChild:
    """As much of ``subprocess.Popen`` as is asked of a child that traces."""

    def __init__(self, command, *, stdin, stdout, stderr, env, start_new_session):
        assert start_new_session
        assert stdin == subprocess.PIPE
        assert command[-2:] == ["-m", CHILD]
        read, write = os.pipe()
        self._start(CHILD, read, stdout, stderr, env)
        os.close(read)
        self.stdin = os.fdopen(write, "wb")
        self.args, self.returncode = command, None

    def _start(self, what, stdin, stdout, stderr, env):
        self._said, theirs = socket.socketpair()
        asked = json.dumps({"what": what, "environment": env, "folder": str(Path.cwd())}).encode()
        assert len(asked) < ASKED_BYTES
        places = [theirs.fileno(), stdin, stdout.fileno(), stderr.fileno()]
        socket.send_fds(server(), [asked], places)
        theirs.close()
        self.pid = int(self._said.recv(64))

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._said], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._said.recv(64))
        return self.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._said.close()


POPEN = SimpleNamespace(
    Popen=WarmChild,
    PIPE=subprocess.PIPE,
    TimeoutExpired=subprocess.TimeoutExpired,
    CompletedProcess=subprocess.CompletedProcess,
)
"""In place of the module ``subprocess``."""


class _Script(WarmChild):
    def __init__(self, words, stdout, stderr):
        with Path(os.devnull).open("rb") as nothing:
            self._start(words, nothing.fileno(), stdout, stderr, dict(os.environ))
        self.args, self.returncode = words, None


def printed(file, *words):
    """What a script prints. Raises CalledProcessError where it fails."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as said:
        with _Script([str(file), *words], out, said) as running:
            code = running.wait()
        for stream in (out, said):
            stream.seek(0)
        if code:
            raise subprocess.CalledProcessError(code, file, out.read(), said.read())
        return out.read()


# ---- who forks ---------------------------------------------------------------------------------------------


def serve(asked: socket.socket) -> None:
    """Fork for everyone who asks, and say how each ended."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by what the system calls a process's end
    while True:
        ready, _, _ = select.select([asked, *running], [], [])
        for end in set(ready) - {asked}:
            pid, told = running.pop(end)
            _, status = os.waitpid(pid, 0)
            os.close(end)
            with suppress(BrokenPipeError):
                told.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            told.close()
        if asked in ready:
            text, places, _, _ = socket.recv_fds(asked, ASKED_BYTES, 4)
            if not text:
                return
            told = socket.socket(fileno=places[0])
            pid = os.fork()
            if pid == 0:
                become(json.loads(text), told, places[1:])
            for place in places[1:]:
                os.close(place)
            running[os.pidfd_open(pid)] = (pid, told)


def become(asked, told, places):
    """Be the child: its streams, its environment, its folder, its words."""
    code = 1
    try:
        os.setsid()
        for stream, place in enumerate(places):
            os.dup2(place, stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        told.sendall(str(os.getpid()).encode())
        told.close()
        if isinstance(asked["what"], str):
            sys.argv = [asked["what"]]
            import_module(asked["what"]).main()
        else:
            sys.argv = asked["what"]
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter does: it is said, and the code tells
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    for module in IMPORTED:
        import_module(module)
    gc.freeze()
    serve(socket.socket(fileno=os.dup(0)))
