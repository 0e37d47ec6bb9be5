"""What is said of an end that happened elsewhere: in another process, on another rank, in another log."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.message import MAYBE, Cure

FIRST_ERROR = Cure(
    change="look for the first error: above, and in the logs of the other processes", helps=MAYBE,
    where="grep -n -m 5 -E 'Error|Traceback|Killed' LOG (and dmesg)", why="what is told here came of it, and no setting mends an echo",
)  # fmt: skip
_ENGINE = (
    "the server says that its engine had died before: what it died of, memory or not, stands in the engine's own "
    "traceback, earlier in the log, which is not in this text"
)  # fmt: skip
_REMOTE = (
    "this rank only says that another one is gone, or that the network between them failed: what that one died of, "
    "memory or not, stands in its own log"
)  # fmt: skip
_LAUNCHED = (
    "the launcher only says that one of its processes ended with an error: what it died of, memory or not, stands in "
    "that process's own traceback, which is not in this text"
)  # fmt: skip
_RUNNER = (
    "Ollama only says that its model's process ended: what it died of, memory or not, stands in the server's log "
    "(journalctl -u ollama, ~/.ollama/logs/server.log), which is not in this text"
)  # fmt: skip
_ACTOR = (
    "Ray only says that a worker's process is gone, and lists what may end one, the host's memory among it: the worker's own log "
    "(worker-*.err in the logs of Ray's session) and dmesg on its node tell which it was"
)  # fmt: skip
_SHARD = (
    "the router only says that a shard of the server is gone: what it died of, memory or not, stands in the shard's own "
    "lines, earlier in the log, which are not in this text"
)  # fmt: skip
ECHOES = (
    ("traceback:Toenabletracebacksee:", _LAUNCHED),
    ("EngineDeadError:EngineCoreencounteredanissue", _ENGINE),
    ("EngineCorefailedtostart.Seerootcauseabove", _ENGINE),
    ("Enginecoreinitializationfailed.Seerootcauseabove", _ENGINE),
    ("AsyncEngineDeadError", _ENGINE),
    ("schedulerisdead.Pleasecheckifthere", _ENGINE),
    ("Error:ShardFailed", _SHARD),
    ("Receivedsigquitfromachildprocess", _ENGINE),
    ("WorkerProcinitializationfailedduetoanexceptioninabackgroundprocess", _ENGINE),
    ("actorisdeadbecauseitsworkerprocesshasdied", _ACTOR),
    ("modelrunnerhasunexpectedlystopped", _RUNNER),
    ("modelfailedtoload,thismaybeduetoresourcelimitations", _RUNNER),
    ("llamarunnerprocesshasterminated", _RUNNER),
    ("llama-serverprocesshasterminated", _RUNNER),
    ("remoteprocessexitedortherewasanetworkerror", _REMOTE),
    ("ncclRemoteError:", _REMOTE),
)
"""What is said of an end that happened elsewhere (vllm/v1/engine/exceptions.py and utils.py,
wait_for_engine_startup; sglang/srt/entrypoints/engine.py, _wait_for_scheduler_ready; nccl.h,
ncclRemoteError; ollama/ollama at fb307609, llm/llama_server.go:1306 and 1642;
torch/distributed/elastic/multiprocessing/errors/__init__.py, format_msg).
"""
_OTHER_ERROR = re.compile(
    r"(?!RuntimeError: Engine)(?:\w{1,40}\.){0,8}(?!(?:Async)?EngineDead|EOFError|ChildFailed)\w{1,60}(?:Error|Exception)(?:: |$)"
)  # fmt: skip


def echo_words(log: Log) -> str:
    """What a program says of an end that happened elsewhere; nothing where a server's own error stands in
    the same log.
    """
    said = next((words for sign, words in ECHOES if sign in log.squeezed), "")
    told = said in (_ENGINE, _LAUNCHED) and any(_OTHER_ERROR.match(each) for each in log.lines)
    return "" if told else said
