"""What would have served the request that failed, and what would not: by verdict, in the words of the
program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.diagnose.causes.limits import beyond_whole_machine
from memsheet.diagnose.causes.neighbours import are_siblings, gap_of_card, shares_with_host
from memsheet.diagnose.causes.shortages import is_warm_up, short_bytes
from memsheet.diagnose.cure_tables import (
    BUCKETS,
    CACHES,
    CHUNKED,
    EIGHT_BITS,
    EVALUATION_BATCH,
    FEWER_ADAPTERS,
    FEWER_GRAPHS,
    FEWER_TRAINED,
    FUSED_LOSS,
    FUSED_ON,
    GATHERS,
    KEEP_FEWER,
    KEEP_NOTHING,
    KEEP_NUMBERS,
    KEEP_ON_HOST,
    MORE_CHUNKS,
    OF_COMPONENT,
    OF_LIBRARIES,
    OF_PHASE,
    OF_PROMPTS,
    OF_TASK,
    ONE_BY_ONE,
    ONE_SEQUENCE,
    PROFILED,
    RECOMPUTE,
    RUNNERS,
    SERVER_ADAPTERS,
    SERVER_GRAPHS,
    SERVER_PARALLEL,
    SERVER_REQUESTS,
    SERVER_SHARE,
    SHORTER_SAMPLES,
    SMALL_STATES,
    SMALLER_BUCKETS,
    SMALLER_UNITS,
    SPREAD_STATES,
    STATED_SHARDS,
    STATES,
    STEPS,
    SUM_NUMBERS,
    TRAINERS,
    UNITS,
)
from memsheet.diagnose.figures import OUTSIDE_MOST, Figures, aligned_bytes
from memsheet.diagnose.frames import (
    ADAPTERS,
    EVALUATION,
    GATHER,
    GATHERED,
    GENERATION,
    LOADING,
    PICTURES,
    PROMPT_PROBS,
    REDUCED,
    SERVING,
    STEP_SIZES,
)
from memsheet.diagnose.interval import (
    NOTHING,
    at_least,
    at_most_words,
    size_words,
)
from memsheet.diagnose.message import MAYBE, NO, YES, Cause, Cure, Term
from memsheet.diagnose.messages.colocated import SHARE, cures_of_colocated, place_of_share, shares_a_card
from memsheet.diagnose.named_cards import beyond_named_card
from memsheet.diagnose.signs import Signs
from memsheet.frozen import replace

MOST = 4
NO_LIMIT = Cure(
    change="no limit", helps=NO, where="PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", why="the machine has no more memory: it would swap, or stop",
)  # fmt: skip
UNTIL_FILLED = "until what grows has filled that too"


def cures_of(cause: Cause, figures: Figures, signs: Signs, term: Term | None, who: str) -> tuple[Cure, ...]:
    """At most four, what helps first. ``who``: the device's kind, as the message has it."""
    found = list(dict.fromkeys(_cures_for(cause, figures, signs, term, who)))
    order = {YES: 0, MAYBE: 1, NO: 2}
    helping = [cure for cure in found if cure.helps != NO][: MOST - 1]
    rest = [cure for cure in found if cure.helps == NO]
    return tuple(sorted((*helping, *rest[: MOST - len(helping)]), key=lambda cure: order[cure.helps]))


def _cures_for(cause: Cause, figures: Figures, signs: Signs, term: Term | None, who: str) -> Iterator[Cure]:
    match cause:
        case Cause.REAL_NEED if who.startswith("MPS") and beyond_whole_machine(figures, signs):
            yield NO_LIMIT
            yield from _for_need(figures, signs, term)
        case Cause.LIMIT_SET if who.startswith("MPS"):
            yield Cure(
                change="no limit, at the risk of the whole system's memory",
                helps=MAYBE,
                where="PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
            )
            yield from _for_need(figures, signs, term)
        case Cause.LIMIT_SET:
            yield Cure(
                change="raise or remove the limit on this process",
                helps=YES,
                where="torch.cuda.set_per_process_memory_fraction(1.0)",
                why=f"{size_words(figures.free or NOTHING)} of the card are free",
            )
            held, allowed = figures.allocated, figures.allowed
            within = (
                held is not None and allowed is not None and at_least(allowed, held + figures.asked) is True
            )
            yield expandable_cure(
                figures,
                signs,
                who,
                covered=within,
                why="the limit counts what is reserved, however it is laid out"
                if not within
                else "tensors and the request are within the limit; pages that are not used no longer count",
            )
        case Cause.NOT_GPU_MEMORY:
            if signs.windows:
                yield Cure(
                    change="a larger page file",
                    helps=MAYBE,
                    where="System > Advanced > Performance > Virtual memory",
                )
            yield Cure(
                change="more host memory for the job (a container's limit, a scheduler's, fewer processes)",
                helps=MAYBE,
            )
            yield Cure(change="a smaller batch", helps=NO, why="the card has room for the request")
            yield expandable_cure(
                figures,
                signs,
                who,
                covered=False,
                why="unsupported on Windows, and the card has room"
                if signs.windows
                else "the card has room for the request",
            )
        case Cause.OTHER_PROCESS:
            yield from (
                _without_host(figures)
                if shares_with_host(signs) and not figures.others
                else _without_others(figures)
            )
            yield _expandable_by_sum(figures, signs, who)
        case Cause.OUTSIDE_ALLOCATOR:
            yield from _against_outside(figures, signs)
            yield _expandable_by_sum(figures, signs, who)
        case Cause.FRAGMENTATION:
            yield from _against_pieces(figures, signs, who)
        case Cause.WAKE_UP_RACE:
            yield Cure(
                change="return the trainer's cached memory before the server wakes",
                helps=MAYBE,
                where="torch.cuda.empty_cache()",
            )
            yield Cure(
                change="a smaller share of the card for the server",
                helps=MAYBE,
                where=place_of_share(signs.text, SERVER_SHARE.get(signs.program, SHARE)),
            )
        case Cause.ENGINE_OVERCOMMIT:
            yield from _in_server(figures, signs, term)
            yield _expandable_by_sum(figures, signs, who)
        case Cause.LEAK:
            yield without_growth(signs)
            pages = _expandable_by_sum(figures, signs, who)
            yield pages if pages.helps == NO else replace(pages, why=f"{pages.why}, {UNTIL_FILLED}")
            yield _no_cache_clearing(who)
        case Cause.REGIME_CHANGE:
            yield from _of_new_regime(signs)
            yield from _for_need(figures, signs, term)
            yield _expandable_by_sum(figures, signs, who)
        case Cause.REAL_NEED:
            yield from _for_need(figures, signs, term)
            yield _expandable_by_sum(figures, signs, who)
            yield _no_cache_clearing(who)
        case _:
            return


def _against_outside(figures: Figures, signs: Signs) -> Iterator[Cure]:
    """By what of this process a text names that holds memory outside the allocator."""
    if shares_a_card(signs.text):
        yield from cures_of_colocated(signs.text, signs.sleep_freed)
    named = [cure for sign, cure in OF_LIBRARIES if sign.search(signs.text)]
    saves = None if shares_a_card(signs.text) else max(0, (figures.outside or NOTHING).high - OUTSIDE_MOST)
    yield from (replace(cure, saves_bytes=saves if len(named) == 1 else None) for cure in named[:2])
    if not named:
        yield replace(FEWER_GRAPHS, saves_bytes=saves)
        yield Cure(change="fewer communicators and other libraries in this process", helps=MAYBE)


def _of_new_regime(signs: Signs) -> Iterator[Cure]:
    """What makes a step again as those that fitted, by why it is another."""
    if signs.outsized:
        yield SHORTER_SAMPLES
    if signs.resumed:
        yield from OF_PHASE["restore"]
    if signs.thaws or signs.thaws_said or (signs.changed_at is not None and signs.changed_at.thaws):
        yield FEWER_TRAINED


def without_growth(signs: Signs) -> Cure:
    """What lets go of what grows, by what a text shows that it is."""
    if signs.sums_losses:
        return SUM_NUMBERS
    if signs.keeps_losses:
        return KEEP_NUMBERS
    if signs.keeps_outputs:
        return KEEP_ON_HOST
    return KEEP_FEWER if CACHES.search(signs.text) else KEEP_NOTHING


def _without_others(figures: Figures) -> Iterator[Cure]:
    if are_siblings(figures):
        yield Cure(
            change="let every rank choose its own card first", helps=MAYBE, saves_bytes=figures.others_total.high,
            where="torch.cuda.set_device(local_rank)", why="a rank that does not makes its context on the first card",
        )  # fmt: skip
        return
    held = figures.others_total if figures.others else figures.unseen or gap_of_card(figures) or NOTHING
    served = figures.free is not None and at_least(figures.free + held, aligned_bytes(figures.asked)) is True
    named = ", ".join(
        figures.process_words(pid)
        for pid, _ in sorted(figures.others, key=lambda other: -other[1].middle)[:3]
    )
    yield Cure(
        change=f"end or move the other {'processes' if len(figures.others) > 1 else 'process'} {named}".rstrip() if named else "find who else is on the card",
        helps=YES if served and named else MAYBE, saves_bytes=held.high, where="nvidia-smi" if named else "nvidia-smi (on the host)",
        why=f"{size_words(figures.free or NOTHING)} free + {size_words(held)} of theirs cover the request",
    )  # fmt: skip
    yield Cure(change="another card", helps=MAYBE, where="CUDA_VISIBLE_DEVICES=N")


def _without_host(figures: Figures) -> Iterator[Cure]:
    yield Cure(
        change="the host's programs ended, and the files that it keeps in memory let go", helps=MAYBE,
        saves_bytes=(figures.unseen or NOTHING).high, where="sync; echo 3 > /proc/sys/vm/drop_caches",
        why="the device's memory is the host's",
    )  # fmt: skip


ALLOC_CONF = {
    "CUDA": "PYTORCH_CUDA_ALLOC_CONF", "HIP": "PYTORCH_HIP_ALLOC_CONF", "XPU": "PYTORCH_ALLOC_CONF", "NPU": "PYTORCH_NPU_ALLOC_CONF",
    "MLU": "PYTORCH_MLU_ALLOC_CONF", "MUSA": "PYTORCH_MUSA_ALLOC_CONF",
}  # fmt: skip


def alloc_conf(who: str) -> str:
    """The variable that the allocator reads; the new name does not turn this on in every release (2.9.1), the
    old one does.
    """
    return f"{ALLOC_CONF.get(who, ALLOC_CONF['CUDA'])}=expandable_segments:True"


def expandable_cure(figures: Figures, signs: Signs, who: str, *, covered: bool | None, why: str) -> Cure:
    """From v2.1.0 on: c10/cuda/CUDACachingAllocator.h:126 and 146 there (is_expandable, SEGMENT_MAP), of
    which v2.0.1's header has nothing.
    """
    kept = figures.unallocated or NOTHING
    if who.startswith("MPS"):
        return Cure(change="expandable segments", helps=NO, why="this allocator has no such setting")
    helps = NO if covered is False or signs.expandable or signs.windows else MAYBE
    said = (
        "it is on already" if signs.expandable and covered is not False
        else "not to be had on Windows" if signs.windows and covered is not False
        else why
    )  # fmt: skip
    if signs.release and helps == MAYBE:
        said = f"{said}; from PyTorch 2.1 on, and this message is of {signs.release} or before"
    if who == "XPU" and helps == MAYBE:
        said = f"{said}; where this release's allocator for XPU has them"
    return Cure(
        change="expandable segments",
        helps=helps,
        saves_bytes=None if helps == NO else kept.high,
        where=f"torch>=2.1, then {alloc_conf(who)}" if signs.release and helps == MAYBE else alloc_conf(who),
        why=said,
    )


def _expandable_by_sum(figures: Figures, signs: Signs, who: str) -> Cure:
    """What merging all that is kept would come to."""
    kept, free = figures.unallocated, figures.free
    if free is None and (over := beyond_named_card(figures.asked, signs.text)):
        return expandable_cure(figures, signs, who, covered=False, why=over)
    if kept is None or free is None:
        return expandable_cure(
            figures, signs, who, covered=None, why="what is kept without tensors is not said"
        )
    covered = at_least(free + kept, figures.asked)
    sums = f"{size_words(free)} free + {size_words(kept)} kept"
    why = f"{sums} {'<' if covered is False else 'against'} {size_words(figures.asked)} asked for"
    return expandable_cure(figures, signs, who, covered=covered, why=why)


def _no_cache_clearing(who: str) -> Cure:
    return Cure(
        change=f"torch.{'cuda' if who == 'HIP' else who.removesuffix('backend').lower()}.empty_cache()",
        helps=NO,
        why="the allocator gave back every whole segment before it failed",
    )


def _against_pieces(figures: Figures, signs: Signs, who: str) -> Iterator[Cure]:
    yield expandable_cure(
        figures,
        signs,
        who,
        covered=True,
        why="merges what lies in pieces, without cost; a page that holds one small tensor stays",
    )
    if is_warm_up(figures):
        yield Cure(
            change="no warm-up of the allocator while weights are loaded",
            helps=MAYBE,
            why="it reserves one block that small tensors then split",
        )
    if figures.private_pools is not None:
        yield Cure(
            change="fewer CUDA graphs",
            helps=MAYBE,
            saves_bytes=figures.private_pools.high,
            why="their pools lend nothing to others",
        )
    if signs.release != "1.3" and who not in ("XPU", "MPSbackend"):  # which have no such setting
        yield Cure(
            change="split no block above a size",
            helps=MAYBE,
            where=alloc_conf(who).replace("expandable_segments:True", "max_split_size_mb:512"),
            why="where this release has it: its message names it then"
            if signs.release and "max_split_size_mb" not in signs.text
            else "",
        )
    yield _no_cache_clearing(who)


def _in_server(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    share = SERVER_SHARE.get(signs.program, "")
    lacking = short_bytes(figures)
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
    if signs.frame is PROMPT_PROBS:
        yield from OF_PROMPTS.get(signs.program, ())
    elif term is not None and term.path == "sampler" and (count := _first_axis(term)):
        yield Cure(
            change=f"half as many requests at once: {count // 2}",
            helps=MAYBE,
            saves_bytes=figures.asked.high // 2,
            where=f"{SERVER_REQUESTS.get(signs.program, '')} {count // 2}".strip(),
            why="the sampler is requests × vocabulary wide",
        )
    else:
        yield Cure(change="fewer requests at once", helps=MAYBE, where=SERVER_REQUESTS.get(signs.program, ""))


def _without_training(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    """An evaluation, a generation, a server: nothing is kept for backward, and no trainer's batch counts."""
    if signs.task == EVALUATION:
        half = figures.asked.times(1, 2)
        yield Cure(
            change="half the batch of the evaluation", helps=MAYBE, where=EVALUATION_BATCH.get(signs.program, ""),
            saves_bytes=half.high if _grows_with_batch(term) else None,
            why=f"a request of its forward is then {size_words(half)}" if _grows_with_batch(term) else "",
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
        yield from _in_server(figures, signs, term)
    else:
        if term is not None and term.path == "attention/scores":
            yield _without_scores(figures, place_of_scoreless(signs))
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
        for cure in OF_TASK.get(signs.task, OF_TASK[PROFILED])[evaluates:]:
            yield replace(cure, where=RUNNERS.get((signs.program, cure.change), cure.where))


BEAMS = re.compile(r"\b(?:generation_)?num_beams\b(?=[\"']?\s{0,3}[:=]\s{0,3}(?!1\b)\d)")
SDPA = 'attn_implementation="sdpa"'
OF_PREFERENCES = "use_liger_loss=True (use_liger_kernel=True in later releases)"
PREFERS = re.compile(r"\btrl/trainer/(?:dpo|grpo|kto)_|\b(?:DPO|GRPO|KTO)(?:Config|Trainer)\b")
"""TRL's trainers of preferences, whose option it is (huggingface/trl v0.25.0, trl/trainer/dpo_config.py)."""
SCORELESS_PROGRAMS = {
    "stable-diffusion-webui": "--opt-sdp-attention (or --xformers)",
    "ComfyUI": "--use-pytorch-cross-attention",
    "Megatron-LM": "--use-flash-attn",
}
SCORELESS_CODE = (
    (re.compile(r"\btimm\b|pytorch-image-models"), "TIMM_FUSED_ATTN=1 (and no --no-fused-attn)"),
    (re.compile(r"\btransformers\b|from_pretrained|attn_implementation"), SDPA),
)
OWN_CODE = "torch.nn.functional.scaled_dot_product_attention"


def place_of_scoreless(signs: Signs) -> str:
    """How attention is told to write no scores, by the program that ran, else by whose code it is."""
    if signs.task == SERVING:
        return "the server's option for its attention's backend"
    if told := SCORELESS_PROGRAMS.get(signs.program):
        return told
    if signs.task == PICTURES:
        return "AttnProcessor2_0"
    known = (place for sign, place in SCORELESS_CODE if sign.search(signs.text))
    return next(known, "") or (SDPA if signs.trainer else OWN_CODE)


def _without_scores(figures: Figures, where: str) -> Cure:
    return Cure(
        change="attention that writes no scores (sdpa, flash)", helps=MAYBE, saves_bytes=figures.asked.high, where=where,
        why="the tensor asked for is not made then",
    )  # fmt: skip


def shared_term(term: Term | None) -> Term | None:
    """What all tensors that a request may be have in common, for changes that help each of them; None where
    some are as large for any batch and some are not.
    """
    if term is None or not term.others:
        return term
    every = (term, *term.others)
    if len({(each.component, each.path) for each in every}) == 1:
        return term
    if all(map(_grows_with_batch, every)):
        words = "what is made of tokens"
        return Term(component="saved_activations", path="model", shape="", exact=False, words=words)
    if not any(map(_grows_with_batch, every)) and len({each.component for each in every}) == 1:
        return term
    return None


def _grows_with_batch(term: Term | None) -> bool:
    return (
        term is not None and term.path != "sampler" and term.component in ("temporaries", "saved_activations")
    )


def _first_axis(term: Term) -> int:
    first = term.shape.strip("[").split(",")[0]
    return int(first) if first.isdigit() else 0


def _place_of_shards(text: str) -> str:
    """Where a configuration that stands in the text is told of more shards; empty where none does."""
    for pattern, more, host in STATED_SHARDS:
        if found := pattern.findall(text):
            return host if found[-1] in ("3", "FULL_SHARD") else more
    return ""


LESS_OF_ONE = "half the length: the loss takes one sequence at a time"
HALF, HALF_LENGTH = "half the micro-batch or half the length", "half the length: one row is a micro-batch"
_ROWS = re.compile(
    r"(?<![a-z])(?:per_device_train_batch_size|micro_(?:train_)?batch_size(?:_per_gpu)?|local_batch_size"
    r"|instantaneous batch size per device|micro[_ ]?batch(?:[_ ]?size)?|mbs|bs)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,5})\b",
    re.IGNORECASE,
)
"""Rows of a micro-batch, as trainers call them."""


def _trains_single_rows(signs: Signs) -> bool:
    """Whether every micro-batch that a text says is of one row, or the plan's is."""
    return signs.single_rows or set(_ROWS.findall(signs.text.replace("-", "_"))) == {"1"}


def _unless_in_eight_bits(cure: Cure, signs: Signs) -> Cure:
    if cure.change != SMALL_STATES or not (signs.eight_bits or EIGHT_BITS.search(signs.text)):
        return cure
    return replace(cure, helps=NO, where="", why="they are in eight bits already")


def _for_need(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    """By what runs, then by what the request is."""
    if signs.task:
        yield from _without_training(figures, signs, term)
        return
    phase = signs.phase or (signs.frame.phase if signs.frame else "")
    if found := OF_PHASE.get(signs.phase) or (OF_PHASE[phase] if phase in ("save", "restore") else ()):
        yield from found
        return
    in_step = signs.frame is STEP_SIZES
    if in_step:
        yield replace(ONE_BY_ONE, where=STEPS.get(signs.trainer, ONE_BY_ONE.where))
    component = "optimizer_states" if in_step else term.component if term else ""
    if states := OF_COMPONENT.get(component):
        own = STATES.get(signs.trainer, {})
        stated = {SPREAD_STATES: place} if (place := _place_of_shards(signs.text)) else {}
        placed = (replace(cure, where={**own, **stated}.get(cure.change, cure.where)) for cure in states)
        yield from (_unless_in_eight_bits(cure, signs) for cure in placed)
        return
    if signs.frame is GATHER:
        yield replace(SMALLER_UNITS, where=UNITS.get(signs.trainer, SMALLER_UNITS.where))
    if signs.frame is REDUCED:
        yield replace(SMALLER_BUCKETS, where=BUCKETS.get(signs.trainer, SMALLER_BUCKETS.where))
    lines = TRAINERS.get(signs.trainer, {})
    proportional = _grows_with_batch(term)
    at_loss = term is not None and term.path == "loss"
    half = figures.asked.times(1, 2)
    free = figures.free if figures.free_is_said else None
    if proportional and term is not None and term.path == "loss/log_probs":
        yield Cure(
            change="fewer tokens in one pass",
            helps=MAYBE,
            saves_bytes=half.high,
            where=lines.get("tokens", lines.get("batch", "")),
            why="logits are tokens × vocabulary wide",
        )
        if signs.trainer == "verl":
            yield Cure(
                change="log-probabilities without full logits",
                helps=MAYBE,
                where=lines["loss"],
                why="the tensor asked for is not made then",
            )
        if signs.trainer == "TRL" and not FUSED_ON.search(signs.text):
            yield Cure(
                change=FUSED_LOSS,
                helps=MAYBE,
                where=OF_PREFERENCES,
                why="the loss then makes the logits of one sequence at a time; what is read without a loss is not made smaller",
            )  # fmt: skip
        else:
            yield Cure(
                change="a loss in chunks", helps=NO, why="logits exist in full before such a loss begins"
            )
    elif proportional and at_loss and CHUNKED in signs.text:
        yield MORE_CHUNKS
    elif proportional and at_loss and FUSED_ON.search(signs.text):
        yield Cure(
            change=FUSED_LOSS,
            helps=NO,
            why="it is on already: one sequence's logits are made at a time"
            if ONE_SEQUENCE.search(signs.text)
            else "it is on already, and this pass makes them all the same",
        )
    elif proportional and at_loss:
        yield Cure(
            change=FUSED_LOSS,
            helps=MAYBE,
            saves_bytes=figures.asked.high,
            where=OF_PREFERENCES if PREFERS.search(signs.text) else lines.get("loss", ""),
            why="the tensor asked for is not made then",
        )
    elif term is not None and term.path == "attention/scores":
        yield _without_scores(figures, place_of_scoreless(signs))
    if not (term is not None and term.path == "loss/log_probs"):
        served = (
            free is not None
            and proportional
            and term is not None
            and (term.exact or term.rows is not None)
            and at_least(free, aligned_bytes(half)) is True
        )
        single = _trains_single_rows(signs)
        if single and term is not None and term.path == "attention/scores":
            half = figures.asked.times(1, 4)  # as long as it is wide
        by_sequence = at_loss and bool(ONE_SEQUENCE.search(signs.text))
        yield Cure(
            change=LESS_OF_ONE if by_sequence else HALF_LENGTH if single else HALF,
            helps=YES if served else MAYBE,
            saves_bytes=figures.asked.high - half.low if proportional else None,
            where="" if by_sequence or single else lines.get("batch", ""),
            why=f"the request is then {size_words(half)}" if proportional else "",
        )
        if not served or term is None or term.component == "saved_activations":
            yield Cure(
                change=RECOMPUTE,
                helps=NO if signs.recomputes else MAYBE,
                where=lines.get("recompute", "torch.utils.checkpoint"),
                why="it is on already" if signs.recomputes else "",
            )
