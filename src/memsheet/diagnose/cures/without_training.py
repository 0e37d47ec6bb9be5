"""Changes for what runs that is no training: an evaluation, a generation, a server."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.diagnose.causes.shortages import short_bytes
from memsheet.diagnose.cures.tables import (
    EVALUATION_BATCH,
    FEWER_ADAPTERS,
    GATHERS,
    OF_PHASE,
    OF_PROMPTS,
    OF_TASK,
    PROFILED,
    RUNNERS,
    SERVER_ADAPTERS,
    SERVER_GRAPHS,
    SERVER_PARALLEL,
    SERVER_REQUESTS,
    SERVER_SHARE,
)
from memsheet.diagnose.cures.tensors import first_axis, grows_with_batch, place_of_scoreless, without_scores
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.frames import (
    ADAPTERS,
    DECODED,
    EVALUATION,
    EXPERT_TOKENS,
    FEED_FORWARD,
    GATHERED,
    GENERATION,
    LOADING,
    PROMPT_PROBS,
    SERVING,
)
from memsheet.diagnose.interval import Interval, at_most_words, size_words
from memsheet.diagnose.message import MAYBE, NO, Cure, Term
from memsheet.diagnose.signs import Signs
from memsheet.frozen import replace


def in_server(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    share = SERVER_SHARE.get(signs.program, "")
    lacking = short_bytes(figures)
    if own_size := CACHE_IN_BYTES.search(signs.text):
        yield from _smaller_cache(int(own_size[1]), lacking)
        yield from _fewer_requests(figures, signs, term)
        return
    hundredths = (
        -(-lacking.high * 100 // figures.capacity.low) if figures.capacity and figures.capacity.low else 1
    )
    yield Cure(
        change=f"a share of the card that is smaller by 0.{max(1, hundredths):02d} or more" if hundredths < 100 else "a smaller share of the card",
        helps=MAYBE, saves_bytes=lacking.high, where=share, why=f"{at_most_words(lacking)} are short beside the cache",
    )  # fmt: skip
    if signs.phase == "graphs":
        yield Cure(
            change="fewer CUDA graphs, or none", helps=MAYBE, where=SERVER_GRAPHS.get(signs.program, "")
        )
    yield from _fewer_requests(figures, signs, term)


CACHE_IN_BYTES = re.compile(
    r"\bkv[-_]cache[-_]memory(?:[-_]bytes)?[\"']?(?:\s{0,3}[=:,]\s{0,3}|\s)[\"']?(\d{8,15})\b"
)
"""vLLM's cache by its size, beside which it reads no share of the card (vllm/config/cache.py,
kv_cache_memory_bytes: "when ... not-None, vLLM ignores gpu_memory_utilization").
"""


def _smaller_cache(held: int, lacking: Interval) -> Iterator[Cure]:
    yield Cure(
        change="a smaller KV cache", helps=MAYBE, saves_bytes=lacking.high, where=f"--kv-cache-memory {max(0, held - lacking.high)}",
        why=f"{at_most_words(lacking)} are short beside the {size_words(Interval(held, held))} that it is set to",
    )  # fmt: skip
    yield Cure(
        change="a smaller share of the card", helps=NO, where="--gpu-memory-utilization", why="the cache has a size of its own, beside which the share is not read",
    )  # fmt: skip


def _fewer_requests(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    if signs.frame is PROMPT_PROBS:
        yield from OF_PROMPTS.get(signs.program, ())
    elif signs.frame in (EXPERT_TOKENS, FEED_FORWARD):
        change = "fewer tokens in one pass"
        yield Cure(
            change=change,
            helps=MAYBE,
            where=RUNNERS.get((signs.program, change), ""),
            why=f"it makes tokens × {'experts of a token' if signs.frame is EXPERT_TOKENS else 'its width'}",
        )
    elif term is not None and term.path == "sampler" and (count := first_axis(term)):
        yield Cure(
            change=f"half as many requests at once: {count // 2}",
            helps=MAYBE,
            saves_bytes=figures.asked.high // 2,
            where=f"{SERVER_REQUESTS.get(signs.program, '')} {count // 2}".strip(),
            why="the sampler is requests × vocabulary wide",
        )
    else:
        yield Cure(change="fewer requests at once", helps=MAYBE, where=SERVER_REQUESTS.get(signs.program, ""))


def beside_own_cache(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    """Of a server whose cache stands outside PyTorch's allocator, where something of PyTorch's lacks room."""
    lacking = short_bytes(figures)
    yield Cure(
        change="a smaller share for the cache", helps=MAYBE, saves_bytes=lacking.high,
        where="--cache-max-entry-count" if "cache_max_entry_count" in signs.text else "free_gpu_memory_fraction",
        why=f"{at_most_words(lacking)} are short beside it",
    )  # fmt: skip
    if term is not None and term.path == "attention/scores":
        yield without_scores(figures, place_of_scoreless(signs))
    yield Cure(change="fewer or smaller inputs at once (pictures of a request)", helps=MAYBE)


def without_training(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    """An evaluation, a generation, a server: nothing is kept for backward, and no trainer's batch counts."""
    if signs.task == EVALUATION:
        half = figures.asked.times(1, 2)
        yield Cure(
            change="half the batch of the evaluation", helps=MAYBE, where=EVALUATION_BATCH.get(signs.program, ""),
            saves_bytes=half.high if grows_with_batch(term) else None,
            why=f"a request of its forward is then {size_words(half)}" if grows_with_batch(term) else "",
        )  # fmt: skip
        if signs.program in GATHERS:
            yield OF_TASK[GATHERED][0]
        elif signs.program not in EVALUATION_BATCH:
            yield Cure(change="no gradients in the evaluation", helps=MAYBE, where="torch.no_grad()")
    elif signs.task == LOADING:
        few, spread, batch = OF_PHASE["load"]
        if signs.frame is ADAPTERS:
            yield replace(FEWER_ADAPTERS, where=SERVER_ADAPTERS.get(signs.program, ""))
        yield from (replace(spread, where=SERVER_PARALLEL.get(signs.program, "")), few, batch)
    elif signs.task == SERVING and signs.phase != "profile":
        yield from in_server(figures, signs, term)
    else:
        if term is not None and term.path == "attention/scores":
            yield without_scores(figures, place_of_scoreless(signs))
        evaluates = signs.phase == "evaluate" and signs.task == GENERATION
        if evaluates:
            yield Cure(
                change="half the batch of the evaluation",
                helps=MAYBE,
                where=EVALUATION_BATCH.get(signs.program, ""),
            )
            if beams := BEAMS.search(signs.text):
                yield Cure(
                    change="fewer beams", helps=MAYBE, where=f"{beams[0]}=1", why="each is a row of the batch"
                )
        offered = OF_TASK.get(signs.task, OF_TASK[PROFILED])[evaluates:]
        if signs.frame is DECODED:
            offered = tuple(sorted(offered, key=lambda cure: "tiles" not in cure.change))
        for cure in offered:
            yield replace(cure, where=RUNNERS.get((signs.program, cure.change), cure.where))


BEAMS = re.compile(r"\b(?:generation_)?num_beams\b(?=[\"']?\s{0,3}[:=]\s{0,3}(?!1\b)\d)")
