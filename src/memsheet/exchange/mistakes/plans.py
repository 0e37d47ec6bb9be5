"""Mistakes of the plan that files say together: what costs memory or time without need. Each cure is
accounted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.exchange.mistakes.case import TRAINERS, Case, FoundMistake, Rule, answer_fits
from memsheet.exchange.shared.script_places import SCRIPT
from memsheet.formulas.adapters import rotated_blocks
from memsheet.plan.adapter_targets import passed_over_targets
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.layers import has_experts
from memsheet.plan.model import Attention, Role
from memsheet.plan.plan import GradientSync
from memsheet.sheet import Component

TARGETS = "adapter.targets"
_LESS_ZERO = {
    "deepspeed": ((0, "stage 0"), (2, "stage 2")),
    "fsdp2": ((2, "fsdp_reshard_after_forward: false"),),
}
"""By engine, degrees of ZeRO that gather nothing in a step, and how one asks for them."""


def _less_zero(case: Case) -> Iterator[FoundMistake]:
    """Gathering costs half as much communication again; without it the job must still fit."""
    lower = _LESS_ZERO.get(str(case.request.get("engine")), ())
    if (
        case.request.get("zero") == 3
        and answer_fits(case.answer)
        and not case.request.get("offload.parameters")
    ):
        for zero, cure in lower:
            changes = {
                "zero": zero,
                "reshard_after_forward": None,
                "mesh.dp_shard": None,
                "mesh.dp_replicate": None,
            }
            other = case.ask(changes)
            if answer_fits(other) and _is_faster_step(case.answer, other) and _fits_as_planned(case, changes):
                yield FoundMistake(
                    where="zero 3",
                    says="parameters are gathered in forward and in backward",
                    fits=f"at zero {zero} too",
                    cure=cure,
                    fitting=changes,
                )
                return


APART = 0.03
"""Steps nearer than this are told as equals, as in the search (``search/train/timed.py``)."""


def _is_faster_step(now: Answer | None, other: Answer | None) -> bool:
    """Whether the other plan's step takes clearly less time; where a step is not timed nobody knows."""
    if now is None or other is None or now.cluster is None:
        return False
    from memsheet.formulas.step_time import quick_s

    try:
        before, after = (float(quick_s(one.model, one.plan, now.cluster)) for one in (now, other))
    except InputError:
        return False
    return after < before * (1 - APART)


def _fits_as_planned(case: Case, changes: Mapping[str, Any]) -> bool:
    """Whether it fits as a plan beside the files says it, too, where the files' engine is known to run it
    otherwise.
    """
    planned = {one.key: one.said[0][1] for one in case.together.meant}
    return not planned or answer_fits(case.ask({**planned, **changes}))


def _needless_offload(case: Case) -> Iterator[FoundMistake]:
    moved = [key for key in ("offload.optimizer", "offload.parameters") if case.request.get(key)]
    if moved and answer_fits(case.ask(dict.fromkeys(moved, 0))):
        yield FoundMistake(
            where=", ".join(moved),
            says="states cross to the host at every step",
            cure="leave the offload out",
            changes=dict.fromkeys(moved, 0),
            fits="without",
        )


def _few_heads(case: Case) -> Iterator[FoundMistake]:
    said = (case.request, *(read.request for read in case.reads.values()))  # of files where it is left out
    tp = next((one["mesh.tp"] for one in said if one.get("mesh.tp")), 1)
    if case.model is None or not isinstance(tp, int):
        return
    blocks = case.model.blocks()
    least = min(
        (mixer.kv_heads for block in blocks for mixer in block.mixers if isinstance(mixer, Attention)),
        default=tp,
    )
    if least < tp:
        yield FoundMistake(
            where="mesh.tp",
            says=f"{tp} ranks for {least} key/value heads: each head is kept {tp // least} times",
            cure=f"tp {least}",
        )


def _eager_attention(case: Case) -> Iterator[FoundMistake]:
    if case.request.get("attention") != "eager":
        return
    known = (
        name
        for name, kind in WITHOUT_SCORES.items()
        if not case.answer or case.ask({"attention": kind}) is not None
    )
    if (name := next(known, None)) is not None:
        yield FoundMistake(
            where="attention",
            says="eager attention keeps every score",
            cure=f'attn_implementation="{name}"',
            changes={"attention": WITHOUT_SCORES[name]},
        )


WITHOUT_SCORES = {"sdpa": "sdpa", "flash_attention_2": "flash"}
"""The library's names of attention that keeps no scores, of which a family may have none or one."""


def _passed_over_targets(case: Case) -> Iterator[FoundMistake]:
    """Names that peft finds no module for while it finds others; Unsloth takes those of experts for their
    stacked matrices (unslothai/unsloth 015bdef unsloth/models/_utils.py, get_moe_target_parameters).
    """
    plan = case.trained
    engine = find_engine(plan.engine) if plan else None
    if case.model is None or plan is None or plan.adapter is None or engine is None:
        return
    experts = has_experts(case.model)
    for name, read in case.reads.items():
        if experts and read.values.get(f"{SCRIPT}.unsloth") is True:
            continue  # it looks for the experts' matrices by these names itself
        asked = read.request.get(TARGETS) or ()
        gone = (
            [str(one) for one in asked if one not in plan.adapter.targets] if isinstance(asked, list) else []
        )
        if over := passed_over_targets(gone, case.model, engine):
            yield FoundMistake(
                where=f"{name}: target modules",
                says=f"no module is called {' or '.join(over)}, which peft passes over without a word",
                cure=_split_words_cure(over) or "leave it out, or name layers that the model has",
            )


def _adjusted_blocks(case: Case) -> Iterator[FoundMistake]:
    """Rotations in blocks that do not divide a layer's inputs, which peft makes others of."""
    plan = case.trained
    if case.model is None or plan is None or plan.adapter is None or not plan.adapter.block_size:
        return
    asked, targets = plan.adapter.block_size, plan.adapter.targets
    widths = {
        int(weight.shape[0 if weight.transposed else 1])
        for block in case.model.blocks()
        for weight in block.weights
        if weight.role is Role.LINEAR
        and weight.path.split(".")[-2:-1]
        and weight.path.split(".")[-2] in targets
    }
    made = {width: rotated_blocks(width, asked)[1] for width in sorted(widths)}
    other = [f"{size} of {width:,} inputs" for width, size in made.items() if size != asked]
    if other:
        yield FoundMistake(
            where="adapter.block_size",
            says=f"blocks of {asked} do not divide a layer's inputs: peft makes {', '.join(other)}",
            cure="a size that divides them",
        )


def _split_words_cure(names: Sequence[str]) -> str:
    """A cure for words that are parted by commas, which a command line takes as part of them."""
    return "names without commas between them" if any("," in name for name in names) else ""


def _kept_whole(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.of("accelerate", *TRAINERS, "torchtitan", "torchtitan-toml"):
        engine = find_engine(str(case.request.get("engine")))
        kept = (
            engine is not None
            and engine.sharding.frees_as_asked
            and case.request.get("zero") == 2
            and (case.request.get("mesh.pp") or 1) == 1
        )
        if kept and case.answer is not None and not answer_fits(case.answer):
            yield FoundMistake(
                where=f"{name}: reshard_after_forward",
                says="gathered parameters stay whole from forward to backward",
                cure="reshard_after_forward: true"
                if read.form.name in ("accelerate", *TRAINERS)
                else "fsdp_reshard_after_forward: always",
                changes={"zero": 3, "reshard_after_forward": True},
            )


def _whole_gradients(case: Case) -> Iterator[FoundMistake]:
    """Gradients of units that are divided wait whole for a step's last micro-batch."""
    plan = case.trained
    waits = plan is not None and plan.gradient_sync is GradientSync.LAST and plan.accumulation > 1
    if plan is None or not waits or answer_fits(case.answer):
        return
    for name, _ in case.of(*TRAINERS):
        yield FoundMistake(
            where=f"{name}: gradient_accumulation_steps",
            says=f"every gradient is kept whole until the last of {int(plan.accumulation)} micro-batches",
            cure="sync_each_batch: true (of accelerator_config's gradient_accumulation_kwargs)",
            changes={"gradient_sync": "every"},
        )
        return


_LOSSES = {
    "megatron": ("fused", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"), "torchtitan": ("chunked", "loss=ChunkedLossWrapper.Config(…)"),
}  # fmt: skip
"""By engine, the loss that keeps less, and how one asks for it."""


_WHOLE = ("plain", "vocab_parallel")


def _whole_logits(case: Case) -> Iterator[FoundMistake]:
    """Nothing where a file asks for another loss, which the sheet alone is without."""
    asked = {read.request.get("loss") for read in case.reads.values()}
    if case.answer is not None and case.answer.plan.loss.value in _WHOLE and asked <= {None, *_WHOLE}:
        loss, cure = _LOSSES.get(
            case.answer.plan.engine, ("fused", "a fused loss (Liger, cut cross-entropy)")
        )
        yield FoundMistake(
            where="loss", says="logits of every token are kept in fp32", cure=cure, changes={"loss": loss}
        )


def _allocator_fragmentation(case: Case) -> Iterator[FoundMistake]:
    sheet = max(case.answer.sheets, key=device_of) if case.answer else None
    slack = (
        sum(int(i.largest.high) for i in sheet.items if i.component is Component.ALLOCATOR_SLACK)
        if sheet
        else 0
    )
    if slack and not answer_fits(case.answer) and not case.request.get("allocator.expandable_segments"):
        yield FoundMistake(
            where="PYTORCH_ALLOC_CONF",
            says="the allocator may keep segments that nothing fits into",
            cure="expandable_segments:True",
            changes={"allocator.expandable_segments": True},
        )


def _full_width(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.of("deepspeed", *TRAINERS, "accelerate"):
        if case.request.get("precision.compute", case.request.get("precision.name")) == "fp32":
            better = {"deepspeed": "bf16-master", "fsdp2": "fsdp2-mixed", "fsdp1": "fsdp2-mixed"}.get(
                str(case.request.get("engine")), "bf16-autocast"
            )
            gone = {key: None for key in case.request if key.startswith("precision.")}
            yield FoundMistake(
                where=f"{name}: {'mixed_precision' if read.form.name == 'accelerate' else 'bf16'}",
                says="nothing switches sixteen bits on: products and activations are fp32",
                cure={"deepspeed": '"bf16": {"enabled": true}', "accelerate": "mixed_precision: bf16"}.get(
                    read.form.name, "bf16: true"
                ),
                changes={**gone, "precision.name": better},
            )
            return


def device_of(sheet: Any) -> int:
    return int(sheet.device.value)


_DS = "DeepSpeed 0.19.8 deepspeed/runtime"
PLANS = (
    Rule(
        id="zero3-where-less-fits",
        source="Rajbhandari et al. 2020, ZeRO, section 7: 1.5 times the communication",
        looks=_less_zero,
        only_if_whole=True,
    ),
    Rule(
        id="offload-without-need",
        source="Ren et al. 2021, ZeRO-Offload, section 4",
        looks=_needless_offload,
        only_if_whole=True,
    ),
    Rule(id="few-kv-heads", source="Ainslie et al. 2023, GQA, section 2.2", looks=_few_heads),
    Rule(id="eager-attention", source="Dao et al. 2022, FlashAttention, section 3", looks=_eager_attention),
    Rule(
        id="targets-passed-over",
        source="huggingface/peft 5d602fd src/peft/tuners/tuners_utils.py:943-953, 1025-1060",
        looks=_passed_over_targets,
    ),
    Rule(
        id="blocks-adjusted",
        source="huggingface/peft 5d602fd src/peft/tuners/oft/layer.py:447-454, 516-537",
        looks=_adjusted_blocks,
    ),
    Rule(
        id="no-reshard", source="torch 2.13 distributed/fsdp/_fully_shard/_fully_shard.py", looks=_kept_whole
    ),
    Rule(
        id="whole-gradients",
        source="accelerate 1.15.0 accelerator.py:1133-1172 (no_sync), utils/dataclasses.py: sync_each_batch",
        looks=_whole_gradients,
        only_if_saves=True,
    ),
    Rule(
        id="whole-logits",
        source="Wijmans et al. 2024, Cut Your Losses, section 1",
        looks=_whole_logits,
        only_if_saves=True,
    ),
    Rule(
        id="fragmentation",
        source="torch 2.13 docs, notes/cuda: expandable_segments",
        looks=_allocator_fragmentation,
    ),
    Rule(
        id="no-sixteen-bits",
        source=f"{_DS}/precision_config.py:46; Micikevicius et al. 2018, Mixed Precision Training",
        looks=_full_width,
    ),
)
