"""Known mistakes of configurations, as a table: which files have them, what they cost, what cures them, who says so.

A rule looks at a ``Case`` and yields what it found. ``changes`` are keys of a plan: a cure whose bytes are told by accounting the plan with
it. ``stops``: the engine refuses the file, so that the job never starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.frozen import dataclass
from memsheet.sheet import Component
from memsheet.spec.exchange import Read, Together
from memsheet.spec.model import Attention, ModelSpec

SHARE_WORTH_TELLING = 20
"""A cure is told where it frees at least one in so many bytes of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Files that were read, what they say together, and what came of it. ``ask`` accounts the plan with some keys changed."""

    reads: Mapping[str, Read]
    texts: Mapping[str, str]
    together: Together
    answer: Answer | None
    model: ModelSpec | None  # known where a plan is refused, too
    ask: Callable[[Mapping[str, Any]], Answer | None]

    @property
    def request(self) -> Mapping[str, Any]:
        return self.together.request

    def of(self, *formats: str) -> Iterator[tuple[str, Read]]:
        return ((name, read) for name, read in self.reads.items() if read.form.name in formats)

    def values(self, *formats: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return ((name, read.values) for name, read in self.of(*formats))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One mistake. ``where``: file and key."""

    where: str
    says: str
    cure: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    saves_bytes: int | None = None
    stops: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``looks`` yields what it finds; ``only_if_saves``: said only where the cure frees a part worth telling."""

    id: str
    source: str
    looks: Callable[[Case], Iterator[Found]]
    only_if_saves: bool = False


def device_bytes(answer: Answer) -> int:
    return max(int(sheet.device.value) for sheet in answer.sheets)


def fits(answer: Answer | None) -> bool:
    return answer is not None and answer.verdict is not None and answer.verdict.result is Result.FITS


# ---- what the rules look for ---------------------------------------------------------------------------------------------------


def _batches(case: Case) -> Iterator[Found]:
    for name, values in case.values("deepspeed"):
        sizes = [values.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
        told = [size for size in sizes if isinstance(size, int) and size > 0]
        gpus = case.together.gpus
        if len(told) == len(sizes):
            whole, micro, rounds = told
            product = micro * rounds * (gpus or 1)
            if (gpus and whole != product) or whole % product:
                over = f"{gpus} GPUs" if gpus else "any number of GPUs"
                yield Found(
                    where=f"{name}: train_batch_size", says=f"{whole} is not {micro} sequences · {rounds} rounds · {over}",
                    cure=f"train_batch_size {product}" if gpus else "leave one of the three out", stops=True,
                )  # fmt: skip


def _disagree(case: Case) -> Iterator[Found]:
    for one in case.together.disagree:
        said = ", ".join(f"{name} says {value}" for name, value in one.said)
        yield Found(where=one.key.lstrip("@"), says=said, cure="say it once, or the same everywhere")


def _unknown(case: Case) -> Iterator[Found]:
    for name, read in case.reads.items():
        for at, near in read.unknown:
            group = at.rsplit(".", 1)[0] if "." in at else ""
            stops = group in read.form.strict
            does = "stops at it" if stops else "ignores it silently"
            yield Found(
                where=f"{name}: {at}",
                says=f"is no key; {read.form.tested} {does}",
                cure=f"{near}?" if near else "leave it out",
                stops=stops,
            )


def _removed(case: Case) -> Iterator[Found]:
    for name, read in case.reads.items():
        for gone in sorted(read.form.removed):
            if any(at == gone or at.startswith(f"{gone}.") for at in read.values):
                yield Found(
                    where=f"{name}: {gone}", says=f"was removed, and {read.form.tested} stops at it", cure="leave it out", stops=True
                )


def _both_widths(case: Case) -> Iterator[Found]:
    for name, read in case.reads.items():
        on = [key for key in ("bf16", "fp16") if read.values.get(f"{key}.enabled", read.values.get(key)) is True]
        if len(on) == 2:
            yield Found(where=f"{name}: fp16", says="bf16 and fp16 are both on", cure="keep bf16", stops=True)


def _fixed_scale(case: Case) -> Iterator[Found]:
    for name, values in case.values("deepspeed"):
        scale = values.get("fp16.loss_scale", 0)
        if values.get("fp16.enabled") is True and scale != 0:
            yield Found(
                where=f"{name}: fp16.loss_scale", says=f"a fixed scale of {scale}: small gradients vanish, large ones overflow for good",
                cure="loss_scale 0, which is dynamic; or bf16",
            )  # fmt: skip


def _full_width(case: Case) -> Iterator[Found]:
    for name, read in case.of("deepspeed", "transformers", "accelerate"):
        if case.request.get("precision.compute", case.request.get("precision.name")) == "fp32":
            better = {"deepspeed": "bf16-master", "fsdp2": "fsdp2-mixed"}.get(str(case.request.get("engine")), "bf16-autocast")
            gone = {key: None for key in case.request if key.startswith("precision.")}
            yield Found(
                where=f"{name}: bf16", says="nothing switches sixteen bits on: products and activations are fp32",
                cure={"deepspeed": '"bf16": {"enabled": true}', "accelerate": "mixed_precision: bf16"}.get(read.form.name, "bf16: true"),
                changes={**gone, "precision.name": better},
            )  # fmt: skip
            return


def _stage_for_parameters(case: Case) -> Iterator[Found]:
    for name, values in case.values("deepspeed"):
        stage = values.get("zero_optimization.stage", 0)
        if values.get("zero_optimization.offload_param.device") in ("cpu", "nvme") and stage != 3:
            yield Found(
                where=f"{name}: zero_optimization.offload_param", says=f"is for stage 3 and does nothing at stage {stage}",
                cure="stage 3, or leave it out", changes={"zero": 3},
            )  # fmt: skip


def _partial_offload(case: Case) -> Iterator[Found]:
    for name, values in case.values("deepspeed"):
        ratio, stage = values.get("zero_optimization.offload_optimizer.ratio", 1), values.get("zero_optimization.stage", 0)
        if isinstance(ratio, int | float) and ratio < 1 and stage != 3:
            yield Found(
                where=f"{name}: zero_optimization.offload_optimizer.ratio",
                says=f"{ratio} is for stage 3 alone",
                cure="ratio 1, or stage 3",
                stops=True,
            )


def _less_zero(case: Case) -> Iterator[Found]:
    """Gathering costs half as much communication again; without it the job must still fit."""
    engine = case.request.get("engine")
    lower = {"deepspeed": (0, 2), "fsdp2": (2,)}.get(str(engine), ())
    if case.request.get("zero") == 3 and fits(case.answer) and not case.request.get("offload.parameters"):
        for zero in lower:
            if fits(case.ask({"zero": zero, "reshard_after_forward": None, "mesh.dp_shard": None, "mesh.dp_replicate": None})):
                yield Found(
                    where="zero 3", says=f"parameters are gathered in forward and in backward, and the job fits at zero {zero} too",
                    cure=f"zero {zero}" + ("" if zero else " (plain replicas)"),
                )  # fmt: skip
                return


def _needless_offload(case: Case) -> Iterator[Found]:
    moved = [key for key in ("offload.optimizer", "offload.parameters") if case.request.get(key)]
    if moved and fits(case.ask(dict.fromkeys(moved, 0))):
        yield Found(
            where=", ".join(moved), says="states cross to the host at every step, and the job fits without", cure="leave the offload out",
            changes=dict.fromkeys(moved, 0),
        )  # fmt: skip


def _large_bucket(case: Case) -> Iterator[Found]:
    for name, values in case.values("deepspeed"):
        size = values.get("zero_optimization.reduce_bucket_size", 500_000_000)
        if (
            case.answer is not None
            and values.get("zero_optimization.stage")
            and isinstance(size, int | float)
            and size > case.answer.parameters
        ):
            yield Found(
                where=f"{name}: zero_optimization.reduce_bucket_size", says=f"{size:,.0f} elements for {case.answer.parameters:,} parameters",
                cure="about the elements of one layer, or auto", saves_bytes=int((size - case.answer.parameters) * 2),
            )  # fmt: skip


def _second_bucket(case: Case) -> Iterator[Found]:
    for name, values in case.values("deepspeed"):
        size = values.get("zero_optimization.reduce_bucket_size", 500_000_000)
        if (
            values.get("zero_optimization.overlap_comm") is True
            and values.get("zero_optimization.stage") in (1, 2)
            and isinstance(size, int | float)
        ):
            yield Found(
                where=f"{name}: zero_optimization.overlap_comm", says="a second bucket is filled while the first is reduced",
                cure="a smaller reduce_bucket_size, or false where memory is short", saves_bytes=int(size * 2),
            )  # fmt: skip


def _few_heads(case: Case) -> Iterator[Found]:
    tp = case.request.get("mesh.tp") or 1
    if case.model is None or not isinstance(tp, int):
        return
    blocks = (block for stack in case.model.stacks for run in stack.runs for block in run.pattern)
    least = min((mixer.kv_heads for block in blocks for mixer in block.mixers if isinstance(mixer, Attention)), default=tp)
    if least < tp:
        yield Found(
            where="mesh.tp", says=f"{tp} ranks for {least} key/value heads: each head is kept {tp // least} times", cure=f"tp {least}"
        )


_YAML_WORDS = re.compile(
    r"^\s*(?:- )?([A-Za-z_]\w*):\s+(?:(yes|no|on|off|y|n)|(\d+(?:\.\d*)?[eE]\d+|\d+[eE]-\d+)|(0\d+)|(\d+(?::[0-5]\d)+))\s*(?:#.*)?$",
    re.IGNORECASE,
)
_TRAPS = (
    "is a truth value in YAML 1.1, not a word", "is text in YAML 1.1, not a number (a dot and a sign are needed)",
    "is a number in base 8 in YAML 1.1", "is a number in base 60 in YAML 1.1",
)  # fmt: skip


def _yaml_traps(case: Case) -> Iterator[Found]:
    for name, read in case.of("accelerate", "transformers"):
        for number, line in enumerate(case.texts[name].splitlines(), start=1):
            told = _YAML_WORDS.match(line)
            if told is not None:
                which = next(n for n in range(4) if told[n + 2])
                cure = (f"'{told[2]}' in quotes, or true or false", "write 2.0e-5", "without the leading zero", "in quotes")[which]
                if which or told[1] in (
                    "mixed_precision",
                    "downcast_bf16",
                    "dynamo_backend",
                    "fsdp",
                    "report_to",
                    "save_strategy",
                    "eval_strategy",
                ):
                    yield Found(where=f"{name}:{number}: {told[1]}", says=f"{told[which + 2]} {_TRAPS[which]}", cure=cure)
        del read


def _eager(case: Case) -> Iterator[Found]:
    if case.request.get("attention") == "eager":
        yield Found(
            where="attention", says="eager attention keeps every score", cure='attn_implementation="sdpa"', changes={"attention": "sdpa"}
        )


def _kept_whole(case: Case) -> Iterator[Found]:
    for name, read in case.of("accelerate", "transformers"):
        if case.request.get("engine") == "fsdp2" and case.request.get("zero") == 2 and not fits(case.answer):
            yield Found(
                where=f"{name}: reshard_after_forward", says="gathered parameters stay whole from forward to backward",
                cure="reshard_after_forward: true", changes={"zero": 3, "reshard_after_forward": True},
            )  # fmt: skip
        del read


def _old_fsdp(case: Case) -> Iterator[Found]:
    for name, values in case.values("accelerate"):
        if values.get("distributed_type") == "FSDP" and values.get("fsdp_config.fsdp_version") is None:
            yield Found(
                where=f"{name}: fsdp_version", says="is not said, and accelerate takes 1, which is deprecated", cure="fsdp_version: 2"
            )


def _no_wrapping(case: Case) -> Iterator[Found]:
    for name, values in case.values("accelerate"):
        policy = values.get("fsdp_config.fsdp_auto_wrap_policy")
        if values.get("distributed_type") == "FSDP" and policy in (None, "NO_WRAP"):
            yield Found(
                where=f"{name}: fsdp_auto_wrap_policy", says="without one the model is a single unit, gathered whole",
                cure="fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            )  # fmt: skip


def _strategy_word(case: Case) -> Iterator[Found]:
    for name, values in case.values("accelerate"):
        told = values.get("fsdp_config.fsdp_reshard_after_forward")
        if str(values.get("fsdp_config.fsdp_version")) == "2" and isinstance(told, str) and told.lower() not in ("true", "false"):
            yield Found(
                where=f"{name}: fsdp_reshard_after_forward",
                says=f"{told} is of version 1; version 2 takes a truth value",
                cure="true",
                stops=True,
            )


def _two_meanings(case: Case) -> Iterator[Found]:
    for name, read in case.reads.items():
        for at in read.values:
            last = at.rsplit(".", 1)[-1]
            if last in (
                "sequence_parallel_size",
                "parallelism_config_sp_size",
                "sequence_parallel_degree",
                "sequence_parallel",
            ) and read.values[at] not in (1, False):
                yield Found(
                    where=f"{name}: {at}", says="ranks share a sequence (Ulysses); Megatron's sequence parallel splits norms over the tp ranks instead",
                    cure="check which is meant: cp splits sequences, sequence_parallel goes with tp",
                )  # fmt: skip


def _whole_logits(case: Case) -> Iterator[Found]:
    if case.request.get("loss") in (None, "plain") and case.answer is not None:
        yield Found(
            where="loss",
            says="logits of every token are kept in fp32",
            cure="a fused loss (Liger, cut cross-entropy)",
            changes={"loss": "fused"},
        )


def _fragments(case: Case) -> Iterator[Found]:
    sheet = max(case.answer.sheets, key=device_of) if case.answer else None
    slack = sum(int(i.largest.high) for i in sheet.items if i.component is Component.ALLOCATOR_SLACK) if sheet else 0
    if slack and not fits(case.answer) and not case.request.get("allocator.expandable_segments"):
        yield Found(
            where="PYTORCH_ALLOC_CONF", says="the allocator may keep segments that nothing fits into", cure="expandable_segments:True",
            changes={"allocator.expandable_segments": True},
        )  # fmt: skip


def device_of(sheet: Any) -> int:
    return int(sheet.device.value)


def _recompute_twice(case: Case) -> Iterator[Found]:
    for name, values in case.values("transformers"):
        if (
            values.get("gradient_checkpointing") is True
            and values.get("fsdp")
            and values.get("fsdp_config.activation_checkpointing") is True
        ):
            yield Found(
                where=f"{name}: gradient_checkpointing",
                says="and FSDP's activation_checkpointing recompute one another",
                cure="keep FSDP's",
            )


_DS = "DeepSpeed 0.19.8 deepspeed/runtime"
RULES = (
    Rule(id="batch-product", source=f"{_DS}/config.py:937", looks=_batches),
    Rule(
        id="files-disagree",
        source="transformers 5.23 integrations/deepspeed.py:116: the Trainer refuses values that mismatch",
        looks=_disagree,
    ),
    Rule(id="unknown-key", source=f"{_DS}/config_utils.py:110; accelerate 1.15 commands/config/config_args.py:127", looks=_unknown),
    Rule(id="removed-key", source=f"{_DS}/config.py:133 of the release", looks=_removed),
    Rule(id="bf16-and-fp16", source=f"{_DS}/config.py:828; transformers 5.23 training_args.py:1785", looks=_both_widths),
    Rule(id="fixed-loss-scale", source=f"{_DS}/precision_config.py:115: 0 is dynamic", looks=_fixed_scale),
    Rule(
        id="no-sixteen-bits", source=f"{_DS}/precision_config.py:46; Micikevicius et al. 2018, Mixed Precision Training", looks=_full_width
    ),
    Rule(id="offload-param-stage", source=f"{_DS}/zero/config.py:157: valid only with stage 3", looks=_stage_for_parameters),
    Rule(id="partial-offload-stage", source=f"{_DS}/zero/config.py:392", looks=_partial_offload),
    Rule(id="zero3-where-less-fits", source="Rajbhandari et al. 2020, ZeRO, section 7: 1.5 times the communication", looks=_less_zero),
    Rule(id="offload-without-need", source="Ren et al. 2021, ZeRO-Offload, section 4", looks=_needless_offload),
    Rule(id="bucket-above-model", source=f"{_DS}/zero/config.py:113: elements, not bytes", looks=_large_bucket),
    Rule(id="second-bucket", source=f"{_DS}/zero/stage_1_and_2.py:2493", looks=_second_bucket),
    Rule(id="few-kv-heads", source="Ainslie et al. 2023, GQA, section 2.2", looks=_few_heads),
    Rule(id="yaml-1.1", source="PyYAML 6.0.3 resolver.py; yaml.org/type/{bool,int,float}", looks=_yaml_traps),
    Rule(id="eager-attention", source="Dao et al. 2022, FlashAttention, section 3", looks=_eager),
    Rule(id="no-reshard", source="torch 2.13 distributed/fsdp/_fully_shard/_fully_shard.py", looks=_kept_whole),
    Rule(id="fsdp-version", source="accelerate 1.15 commands/launch.py:516", looks=_old_fsdp),
    Rule(id="no-wrap-policy", source="accelerate 1.15 utils/dataclasses.py:1910", looks=_no_wrapping),
    Rule(id="fsdp1-words", source="accelerate 1.15 utils/dataclasses.py:1877", looks=_strategy_word),
    Rule(
        id="two-sequence-parallels",
        source="Jacobs et al. 2023, DeepSpeed-Ulysses; Korthikanti et al. 2022, section 4.2",
        looks=_two_meanings,
    ),
    Rule(id="whole-logits", source="Wijmans et al. 2024, Cut Your Losses, section 1", looks=_whole_logits, only_if_saves=True),
    Rule(id="fragmentation", source="torch 2.13 docs, notes/cuda: expandable_segments", looks=_fragments),
    Rule(id="recompute-twice", source="transformers 5.23 training_args.py:2795", looks=_recompute_twice),
)


def lint(case: Case) -> tuple[tuple[Rule, Found], ...]:
    """Every mistake that is found, those that stop the job first, then by what the cure frees."""
    found = [(rule, _weighed(case, one)) for rule in RULES for one in rule.looks(case)]
    worth = [(rule, one) for rule, one in found if not rule.only_if_saves or _worth(case, one)]
    return tuple(sorted(worth, key=lambda pair: (not pair[1].stops, -(pair[1].saves_bytes or 0))))


def _weighed(case: Case, found: Found) -> Found:
    """With the bytes of a rank that the cure frees, where a plan can say it."""
    if not found.changes or case.answer is None:
        return found
    cured = case.ask(found.changes)
    if cured is None:
        return found
    from dataclasses import replace

    return replace(found, saves_bytes=device_bytes(case.answer) - device_bytes(cured))


def _worth(case: Case, found: Found) -> bool:
    return case.answer is not None and (found.saves_bytes or 0) * SHARE_WORTH_TELLING > device_bytes(case.answer)
