"""More questions of ``fuzzing``: messages and logs, snapshots of the allocator, jobs of several models, and
requests as the page and agents send them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

JOB: Mapping[str, Any] = {
    "schema": "memsheet/job/1", "gpus": "2xL4",
    "roles": {
        "actor": {"model": "llama-tiny", "plan": {"task": "train", "engine": "fsdp2", "zero": 3, "seq_len": 512, "microbatch": 2}, "trained": True, "process": "trainer"},
        "rollout": {"model": "llama-tiny", "plan": {"task": "infer", "engine": "vllm", "serving": {"memory_fraction": 0.3, "max_model_len": 1024, "max_sequences": 8}}},
    },
    "phases": [
        {"name": "gen", "active": "rollout"},
        {"name": "ref", "active": "actor", "work": "forward", "residents": {"rollout": "asleep-1"}, "logits": {"tokens": 1024, "bytes": [2, 4, 6]}},
        {"name": "update_actor", "active": "actor", "residents": {"rollout": "asleep-2"}, "items": [{"component": "temporaries", "path": "x", "bytes": 5, "why": "y"}]},
    ],
}  # fmt: skip
REQUESTS: tuple[Mapping[str, Any], ...] = (
    {"question": "train", "model": "llama-tiny", "gpus": "8xH100-80GB", "seq_len": 512, "engine": "fsdp2", "view": True},
    {"question": "infer", "model": "llama-tiny", "gpus": "1xL4", "engine": "vllm", "max_model_len": 512, "view": True},
    {"question": "solve", "what": "seq-len", "model": "llama-tiny", "gpus": "1xL4", "most": 2048},
    {"question": "grid", "task": "train", "x": "seq_len", "y": "microbatch", "xs": [256, 512], "ys": [1, 2], "model": "llama-tiny", "gpus": "1xL4"},
    {"question": "check", "files": [{"name": "ds_config.json", "text": '{"zero_optimization": {"stage": 3}}'}], "model": "llama-tiny", "gpus": "8xH100-80GB", "seq_len": 512},
    {"question": "export", "plan": {"schema": "memsheet/plan/1", "task": "train", "model": "llama-tiny", "seq_len": 512, "gpus": "8xH100-80GB"}, "to": "deepspeed"},
    {"question": "diagnose", "text": "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "view": True},
    {"question": "read", "text": "accelerate launch train.py --model_name_or_path llama-tiny"},
    {"question": "explain", "term": "zero"},
)  # fmt: skip


@cache
def messages() -> tuple[str, ...]:
    from tests.unit.diagnose.corpus import TEXTS

    return tuple(case.text for case in TEXTS)


@cache
def recorded_snapshots() -> tuple[bytes, ...]:
    """Of a step that leaks, and of one that leaves pieces, as pickles and as JSON."""
    from tests.unit.diagnose.snapshots import as_torch_has_it, pickled, pieces, steps

    found = [as_torch_has_it(steps(2, kept=2**20), None), as_torch_has_it(pieces(6), None)]
    return (*(pickled(one) for one in found), *(json.dumps(one).encode() for one in found))


def messages_asked(luck: random.Random) -> Any:
    """Messages and logs with lines, words and figures changed, joined and cut."""
    from fuzzing import Asked, mutated

    text = "\n".join(luck.choice(messages()) for _ in range(luck.choice((1, 1, 1, 2, 3))))
    content = mutated(luck, "job.log", text.encode("utf-8", "surrogatepass"))
    if luck.random() < 0.2:
        content = content[: luck.randrange(len(content) + 1)]
    if luck.random() < 0.1:
        content = damaged(luck, content)
    words: tuple[str, ...] = ("diagnose", "job.log")
    if luck.random() < 0.3:
        words += ("--model", "llama-tiny", "--gpus", "1xL4", "--seq-len", "512")
    return Asked(words=(*words, *luck.choice(((), ("--json",)))), files={"job.log": content})


def snapshots_asked(luck: random.Random) -> Any:
    """A snapshot with bytes that differ, or with values that do."""
    from fuzzing import Asked, as_text, changed

    content = luck.choice(recorded_snapshots())
    if content[:1] == b"{" and luck.random() < 0.7:
        content = as_text(changed(luck, json.loads(content)))
    else:
        content = damaged(luck, content)
    return Asked(words=("diagnose", "snapshot.pickle"), files={"snapshot.pickle": content})


def damaged(luck: random.Random, content: bytes) -> bytes:
    """Bytes changed, taken out, put in twice, or cut."""
    found = bytearray(content or b"x")
    for _ in range(luck.choice((1, 1, 2, 8))):
        at = luck.randrange(len(found))
        end = min(len(found), at + luck.choice((1, 1, 4, 64)))
        match luck.randint(0, 3):
            case 0:
                found[at] = luck.randrange(256)
            case 1:
                found[at:end] = b""
            case 2:
                found[at:at] = found[at:end]
            case _:
                found[at:end] = bytes(luck.choice((0, 255, 0x80, 0x29)) for _ in range(end - at))
        found = found or bytearray(b"x")
    return bytes(found[: luck.randrange(len(found)) + 1] if luck.random() < 0.15 else found)


def jobs_asked(luck: random.Random) -> Any:
    """A job with some of its values changed."""
    from fuzzing import Asked, as_text, changed

    job = json.loads(json.dumps(JOB))
    for _ in range(luck.choice((1, 1, 2, 3))):
        job = changed(luck, job)
    return Asked(words=("job", "job.json"), files={"job.json": as_text(job)})


def requests_asked(luck: random.Random) -> Any:
    """What the page and agents ask, with keys and values changed."""
    from fuzzing import Asked, as_text, changed

    request = dict(luck.choice(REQUESTS))
    for _ in range(luck.choice((1, 1, 2, 3))):
        request = changed(luck, request)
    try:
        found = json.loads(as_text(request))
    except (ValueError, RecursionError):
        found = {}
    return Asked(function="ask", keywords={"request": found if isinstance(found, dict) else {}})


MORE_KINDS: Mapping[str, Callable[[random.Random], Any]] = {
    "messages": messages_asked, "snapshots": snapshots_asked, "jobs": jobs_asked, "requests": requests_asked,
}  # fmt: skip
