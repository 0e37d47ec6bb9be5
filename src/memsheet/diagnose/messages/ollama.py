"""Ollama's messages, and llama.cpp's changes in its words.

The sentences are those of ollama/ollama (llm/server.go and fs/ggml of its releases until 0.12, which say what
they place on the card; llm/llama_server.go at fb307609, which starts llama.cpp's server), its settings those
of envconfig/config.go and api/types.go there.
"""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes, size_words
from memsheet.diagnose.message import MAYBE, NUMBER, Cause, Cure, Form, Judgement, Message, sized_pattern
from memsheet.diagnose.messages.host import SMALLER_BATCH
from memsheet.frozen import replace

SIGNS = (b"requires more system memory", b"memory.required", b"runner process", b"resource limitations")
_MARKS = re.compile(
    r"ollama|llama runner process|llama-server process has|source=(?:sched|server|memory|runner|ggml)\.go"
    r"|//ml/backend/ggml|\bnum_ctx\b",
    re.IGNORECASE,
)
"""What its logs and settings alone hold."""
PLACES = {
    "-ngl N": "num_gpu N", "-c N": "num_ctx N (OLLAMA_CONTEXT_LENGTH=N)", "-fa on": "OLLAMA_FLASH_ATTENTION=1", "-ub N": "num_batch N",
    "-fa on -ctk q8_0 -ctv q8_0": "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0",
}  # fmt: skip
"""Where it is told of what llama.cpp's options say."""
_PARALLEL = re.compile(r"\bOLLAMA_NUM_PARALLEL[=: \"']{1,3}(\d{1,4})\b|\s--parallel (\d{1,4})\b")
_PLACED = re.compile(
    rf"memory\.available=\"\[(?P<free>{NUMBER})(?P<free_unit>[KMG]iB)\]\""
    rf"\S{{0,400}}?memory\.required\.kv=\"(?P<cache>{NUMBER})(?P<cache_unit>[KMG]iB)\""
    rf"memory\.required\.allocations=\"\[(?P<placed>{NUMBER})(?P<placed_unit>[KMG]iB)\]\""
)
"""What it found free on its one card, and what it placed there."""
SMALLER_MODEL = Cure(
    change="a smaller model, or one in fewer bits", helps=MAYBE, where="ollama run NAME:TAG (a q4_K_M of fewer parameters)"
)  # fmt: skip
SWAP = Cure(
    change="more memory or swap for the host",
    helps=MAYBE,
    why="the check is of what is free of both together",
)
OVERHEAD = Cure(
    change="more of the card left out of its reckoning", helps=MAYBE, where="OLLAMA_GPU_OVERHEAD=1073741824",
    why="it then places fewer layers on the card; in bytes",
)  # fmt: skip


def speaks(log: Log) -> bool:
    """Whether a text is of Ollama."""
    return bool(_MARKS.search(log.text))


def fewer_at_once(log: Log) -> tuple[Cure, ...]:
    """Fewer requests at once, of which each has a context of its own in the cache; nothing where one is."""
    said = [int(one or other) for one, other in _PARALLEL.findall(log.text)]
    if not said or said[-1] < 2:
        return ()
    return (
        Cure(
            change="fewer requests at once", helps=MAYBE, where="OLLAMA_NUM_PARALLEL=1",
            why=f"the cache is of {said[-1]} contexts now",
        ),
    )  # fmt: skip


def in_own_words(cures: tuple[Cure, ...], log: Log) -> tuple[Cure, ...]:
    """Changes of llama.cpp as Ollama is told of them; those that it has no word for are left without one."""
    if not speaks(log):
        return cures
    return tuple(
        replace(cure, where=PLACES.get(cure.where, "" if cure.where[:1] == "-" else cure.where))
        for cure in cures
    )


def placed_sizes(log: Log) -> tuple[Interval, Interval, Interval] | None:
    """What its last reckoning found free, placed on the card, and has of cache in that; None where it says
    none, or several cards.
    """
    found = list(_PLACED.finditer(log.squeezed))
    sizes = [
        printed_bytes(found[-1][name], found[-1][f"{name}_unit"]) for name in ("free", "placed", "cache")
    ] if found else []  # fmt: skip
    return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 and None not in sizes else None  # type: ignore[return-value]


_FREE = (
    re.compile(
        rf"msg=\"gpumemory\"\S{{0,160}}?free=\"(?P<free>{NUMBER})(?P<unit>[KMG]iB)\""
        rf"|memory\.available=\"\[(?P<listed>{NUMBER})(?P<listed_unit>[KMG]iB)\]\""
    ),
    re.compile(
        rf"msg=\"inferencecompute\"(?!\S{{0,80}}library=cpu)\S{{0,400}}?total=\"{NUMBER}[KMG]iB\"available=\"(?P<free>{NUMBER})(?P<unit>[KMG]iB)\"(?P<listed>)(?P<listed_unit>)"
    ),
)  # fmt: skip
"""What it says was free as it placed a model; else what it found as the server started (discover/types.go,
LogDetails).
"""


def free_on_card(log: Log, place: int) -> Interval | None:
    """What it found free on its one card as it began to load, before a place of ``squeezed``; before that
    what it found at its start.
    """
    for pattern in _FREE:
        found = {
            (each["free"] or each["listed"], each["unit"] or each["listed_unit"])
            for each in pattern.finditer(log.squeezed, 0, place)
        }
        if found:
            return printed_bytes(*found.pop()) if len(found) == 1 else None
    return None


def _short_system(message: Message, log: Log) -> Judgement:
    asked, free = message.facts["asked"], message.facts["free"]
    return Judgement(
        causes=(Cause.NOT_GPU_MEMORY,), missing=(asked - free).positive,
        because=f"{size_words(asked)} of host memory are needed, for what does not go on the card, and {size_words(free)} available, "
        "swap among it",
        cures=(
            SMALLER_MODEL, Cure(change="a shorter context", helps=MAYBE, where=PLACES["-c N"]), *(fewer_at_once(log) or (SWAP,)), SMALLER_BATCH,
        ),
    )  # fmt: skip


FORMS = (
    Form("system", re.compile(rf"requiresmoresystemmemory\({sized_pattern('asked')}\)thanisavailable\({sized_pattern('free')}\)"), _short_system),
)  # fmt: skip
