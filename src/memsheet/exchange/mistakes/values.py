"""Values at which the parser of a file's program stops, and degrees and batches that its first checks
refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from memsheet.errors import nearest_words
from memsheet.exchange.mistakes.case import ENGINE_REFUSES, TRAINERS, Case, FoundMistake, Rule
from memsheet.exchange.mistakes.server_case import server_commands
from memsheet.exchange.mistakes.taken_values import (
    REFUSED,
    TAKEN,
    AllowedValues,
    allowed_values_at,
    is_literal_value,
)
from memsheet.exchange.shared.file_format import UNSET, FileReading, Key
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.exchange.shared.older_keys import OlderKey, class_of_method, older_keys
from memsheet.exchange.shared.program_releases import (
    is_key_typo,
    is_word_slip,
    keys_known,
    package_release,
    release_numbers,
)
from memsheet.exchange.shared.script_places import OLDER_WORDS, SCRIPT
from memsheet.patterns import late_pattern
from memsheet.plan.model import Attention


def _refused_values(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.reads.items():
        for at, value in read.values.items():
            for row in allowed_values_at(read.form.name, at):
                for one in row.single_values(value):
                    why = row.refusal(one) if is_literal_value(one) else ""
                    if why:
                        yield _refused_value(f"{name}: {at}", read, row, str(one), why)


_COUNTED = (
    "microbatch",
    "global_batch",
    "@accumulation",
    "seq_len",
    "adapter.rank",
    "mesh.tp",
    "mesh.pp",
    "mesh.cp",
)
"""Keys of a plan that are numbers in whatever file says them."""
_NUMBER = late_pattern(r"[+-]?[\d._]+(?:[eE][+-]?\d+)?[kKmMgG]?")


def _words_for_numbers(case: Case) -> Iterator[FoundMistake]:
    """A text where the program counts: no parser makes a number of it."""
    for name, read in case.reads.items():
        for row in read.form.keys:
            held = read.values.get(row.at)
            if (
                not isinstance(held, str)
                or not is_literal_value(held)
                or any(allowed_values_at(read.form.name, row.at))
            ):
                continue
            if _is_word(held) and _counts(row, read.values):
                yield FoundMistake(
                    where=f"{name}: {row.at}",
                    says=f"{held} is no number; {read.form.tested} refuses to start with it",
                    cure="a number",
                    stops=True,
                )


def _counts(row: Key, values: Mapping[str, Any]) -> bool:
    """Whether a place is of a number that the plan has, too."""
    said = row.read(PROBE, {**values, row.at: PROBE})
    return any(said.get(key) == PROBE for key in _COUNTED)


PROBE = 4


def _is_word(text: str) -> bool:
    return not _NUMBER.fullmatch(text)


def _refused_value(where: str, read: FileReading, row: AllowedValues, value: str, why: str) -> FoundMistake:
    near = next(iter(nearest_words(value, list(row.words), n=1)), "") if row.words else ""
    known = row.any_reader or read.form.program_known(read.values)
    sure = not row.words or row.closed or keys_known(read) or is_word_slip(value, near)
    if known and sure:
        told = f"; {read.form.tested} refuses to start with it"
    else:
        other = "release" if known else "program"
        told = f"; {read.form.tested} would refuse it; another {other} may know it"
    return FoundMistake(
        where=where, says=why + told, cure=f"{near}?" if near else _fitting(row), stops=known and sure
    )


def _keys_of_older_releases(case: Case) -> Iterator[FoundMistake]:
    """A key that newer releases of TRL stop at, and that is read as older ones have it."""
    for name, read in case.of(*TRAINERS):
        said = release_numbers(_trl_release(read, case.texts.get(name, "")))
        for at, one in _older_keys(read):
            if said and said < one.since:
                continue
            last, since = (".".join(map(str, numbers)) for numbers in (one.last, one.since))
            yield FoundMistake(
                where=f"{name}: {at}",
                says=f"is no key since TRL {since}, which stops at it; {last} and older take it",
                cure=f"{one.now}, or --engine-version with the release",
                stops=bool(said),
                may_stop=not said,
            )


def _trl_release(read: FileReading, text: str) -> str:
    """TRL's release by which a file is read: of a script, whose arguments are transformers', a number below
    those that transformers has had since there is a TRL.
    """
    own = read.form.name == TRL or release_numbers(read.release) < (4,)
    return read.release if own and read.release else package_release(TRL, text)


def _older_keys(read: FileReading) -> Iterator[tuple[str, OlderKey]]:
    """Where a recipe of TRL's, or a script's configuration of its, says such a key."""
    values = read.values
    if read.form.name == TRL and read.form.program_known(values):
        name = class_of_method(str(dict(read.unmodelled).get("method", "SFT")))
        yield from ((one.key, one) for one in older_keys(name, values))
    if words := values.get(f"{SCRIPT}.{OLDER_WORDS}"):
        name = str(values.get(f"{SCRIPT}.reads")).partition(" ")[0]
        yield from ((one.key, one) for one in older_keys(name, dict.fromkeys(words, True)))


TRL = "trl"


def _fitting(row: AllowedValues) -> str:
    if row.words:
        return row.words[0]
    if row.most is None:
        return "a number"
    return f"a number from {row.least or 0:g} to {row.most:g}"


def _values_refused_together(case: Case) -> Iterator[FoundMistake]:
    for one in REFUSED:
        for name, read in case.of(one.format):
            if one.is_met(read):
                at = next(iter(one.where))
                told = "" if read.values.get(at) is None else f" = {read.values[at]}"
                yield FoundMistake(where=f"{name}: {at}{told}", says=one.says, cure=one.cure, stops=True)


def _engine_refusals(case: Case) -> Iterator[FoundMistake]:
    """What keeps a plan from having a sheet, where the engine stops at it, too."""
    for problem in case.refused:
        where, held = next(
            (
                (f"{name}: {at}", read.values[at])
                for name, read in case.reads.items()
                for at in read.used
                if problem.field in _plan_keys_of(read, at)
            ),
            (problem.field, problem.value),
        )
        told = "" if held is None else f"{held}: "
        cure = _in_server_flags(case, problem.hint)
        sure = not (problem.field.startswith("optimizer.") and _is_divided_by_release(case))
        says = f"{told}{problem.reason}"
        yield FoundMistake(where=where, says=says, cure=cure, stops=sure, may_stop=not sure)


def _is_divided_by_release(case: Case) -> bool:
    """Whether which FSDP divides the states is a default of the Trainer's release: 2 in the newest
    (transformers 5.23.0 training_args.py:2826), accelerate's own, 1, before (4.57.6
    training_args.py:2003-2030 says none).
    """
    return any(
        read.values.get("fsdp") and "fsdp_config.version" not in read.values and not read.release
        for _, read in case.of(*TRAINERS)
    )


OWN_FLAGS = {"--page-tokens": "page", "--kv-dtype": "cache", "--tp": "tp", "--memory-fraction": "fraction"}
"""Flags of ours by what they are of a server's command."""


def _in_server_flags(case: Case, hint: str) -> str:
    """A hint in the words of the server's own command, where the file is one."""
    flags = next((flags for _, _, flags in server_commands(case)), None)
    if flags is None:
        return hint
    return " ".join(flags[OWN_FLAGS[word]] if word in OWN_FLAGS else word for word in hint.split(" "))


def _plan_keys_of(read: FileReading, at: str) -> Mapping[str, Any]:
    """The plan's keys that a place of a file says."""
    row = next((row for row in read.form.keys if row.at == at), None)
    return {} if row is None else row.read(read.values[at], read.values)


_HEADS = {"megatron": False, "swift-megatron": False, "torchtune": True, "vllm": False}
"""By format, whether key/value heads have to be divided, too."""


def _undivided_heads(case: Case) -> Iterator[FoundMistake]:
    """Tensor-parallel ranks that the attention heads cannot be shared over."""
    for name, read in case.of(*_HEADS):
        at, ranks = _tensor_ranks(read)
        for words, heads in _head_counts(case, keys_too=_HEADS[read.form.name]):
            if ranks > 1 and heads % ranks:
                yield FoundMistake(
                    where=f"{name}: {at}",
                    says=(
                        f"{ranks} does not divide the {heads} {words}; "
                        f"{read.form.tested} refuses to start with it"
                    ),
                    cure=f"{max(n for n in range(1, ranks) if heads % n == 0)}",
                    stops=True,
                )
                break


def _tensor_ranks(read: FileReading) -> tuple[str, int]:
    """Where the file says its tensor-parallel ranks, and how many they are."""
    for row in read.form.keys:
        held = _count(read.values.get(row.at))
        if held and row.read(held, read.values).get("mesh.tp") == held:
            return row.at, held
    return "", 1


def _head_counts(case: Case, *, keys_too: bool) -> Iterator[tuple[str, int]]:
    model = case.model if case.answer is None else None
    for mixer in model.mixers() if model else ():
        if isinstance(mixer, Attention):
            yield "attention heads", mixer.heads
            if keys_too:
                yield "key/value heads", mixer.kv_heads


_SCHEDULES = ("--rampup-batch-size", "--step-batch-size-schedule", "--decrease-batch-size-if-needed")
_DEGREES = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")


def _undivided_batch(case: Case) -> Iterator[FoundMistake]:
    """A global batch that is no whole number of micro-batches on every data-parallel rank."""
    for name, read in case.of("megatron"):
        values = read.values
        whole, micro = _count(values.get("--global-batch-size")), _count(values.get("--micro-batch-size"))
        share = prod(_count(values.get(at, 1)) for at in _DEGREES)
        ranks = _count(read.request.get("@gpus"))
        if any(at in values for at in _SCHEDULES) or not (whole and micro and share) or ranks % share:
            continue
        product = micro * (ranks // share)
        if product and whole % product:
            yield FoundMistake(
                where=f"{name}: --global-batch-size",
                says=f"{whole} is not a multiple of {micro} sequences · {ranks // share} replicas",
                cure=f"--global-batch-size {-(-whole // product) * product}",
                stops=True,
            )


def _count(value: Any) -> int:
    """A positive whole number, or 0."""
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 0


ACTOR = "actor_rollout_ref.actor"
_GATHERED, _UPDATE = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"


def _update_above_batch(case: Case) -> Iterator[FoundMistake]:
    """An update of more prompts than a step gathers."""
    for name, values in case.values("verl"):
        gathered, update = _count(values.get(_GATHERED)), _count(values.get(_UPDATE))
        if 0 < gathered < update and _is_static(values):
            yield FoundMistake(
                where=f"{name}: {_GATHERED}",
                says=f"{gathered} is less than the {update} prompts of {_UPDATE}",
                cure=f"{_UPDATE}={gathered}",
                stops=not _has_older_words(values),
            )


_OLDER_WORDS = (
    f"{ACTOR}.ppo_micro_batch_size", f"{ACTOR}.fsdp_config.grad_offload", "actor_rollout_ref.rollout.log_prob_micro_batch_size",
)  # fmt: skip
"""Keys of releases that took a smaller batch whole (their copy in Unakar/Logic-RL 9d2c457
verl/workers/actor/dp_actor.py:218), which newer ones still know or pass over.
"""


def _has_older_words(values: Mapping[str, Any]) -> bool:
    """Whether an older release may run it, which does not refuse this."""
    return any(values.get(at) is not None for at in _OLDER_WORDS)


def _is_static(values: Mapping[str, Any]) -> bool:
    return values.get(f"{ACTOR}.use_dynamic_bsz") in (None, False) and UNSET not in (
        values.get("--config-name"),
        values.get(f"{ACTOR}.use_dynamic_bsz"),
    )


def _misspelt_overrides(case: Case) -> Iterator[FoundMistake]:
    """Hydra changes what a configuration has, and adds what stands behind a plus."""
    for name, read in case.of("verl"):
        text = case.texts.get(name, "")
        for at in read.ignored if PROGRAM in read.values else ():
            group = at.rpartition(".")[0]
            near = next(
                (
                    row.at
                    for row in read.form.keys
                    if row.at.rpartition(".")[0] == group and is_key_typo(at, row.at)
                ),
                "",
            )
            if near and f"+{at}" not in text:
                yield FoundMistake(
                    where=f"{name}: {at}",
                    says="is no key of the configuration, and Hydra refuses it",
                    cure=f"{near}?",
                    stops=True,
                )


def _more_ranks_than_named(case: Case) -> Iterator[FoundMistake]:
    """Ranks beyond the GPUs that somebody says there are."""
    if case.too_few_cards is None:
        return
    named, ranks = case.too_few_cards
    yield FoundMistake(
        where="--gpus",
        says=f"the files are for {ranks} ranks, a GPU each, and --gpus names {named}",
        cure="as many GPUs as ranks (those of all nodes together), or no more ranks than GPUs",
        stops=True,
        by_cards=True,
    )


VALUES = (
    Rule(
        id=ENGINE_REFUSES,
        source=(
            "Dao-AILab/flash-attention README: Ampere and newer; vLLM v0.33.0 vllm/config/vllm.py, "
            "_get_quantization_config; SGLang v0.5.23 srt/model_loader/loader.py, _get_quantization_config; "
            "TransformerEngine pytorch/quantization.py"
        ),
        looks=_engine_refusals,
        any_reader=True,
    ),
    Rule(
        id="value-not-taken",
        source="; ".join(dict.fromkeys(row.source for row in TAKEN)),
        looks=_refused_values,
        any_reader=True,
    ),
    Rule(
        id="word-for-number",
        source="Python 3 library reference, int(): text that is no number is a ValueError",
        looks=_words_for_numbers,
        any_reader=True,
    ),
    Rule(
        id="key-of-older-release",
        source=(
            "TRL 0.15.2, 0.16.0, 0.19.1, 0.20.0, 0.27.2, 0.28.0 and 0.29.0 trl/trainer/*_config.py, "
            "sft_trainer.py, dpo_trainer.py; trl/scripts/utils.py: TrlParser"
        ),
        looks=_keys_of_older_releases,
    ),
    Rule(
        id="refused-together",
        source="; ".join(dict.fromkeys(one.source for one in REFUSED)),
        looks=_values_refused_together,
    ),
    Rule(
        id="tp-divides-heads",
        source=(
            "NVIDIA/Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py:1446; "
            "pytorch/torchtune bd2a0fc torchtune/training/_distributed.py:757; vLLM 0.33.0 "
            "vllm/config/model.py: verify_with_parallel_config"
        ),
        looks=_undivided_heads,
        any_reader=True,
    ),
    Rule(
        id="batch-over-ranks",
        source="NVIDIA/Megatron-LM d98e8a64 megatron/core/num_microbatches_calculator.py:380",
        looks=_undivided_batch,
    ),
    Rule(
        id="misspelt-override",
        source="facebookresearch/hydra 1.3.8 hydra/_internal/config_loader_impl.py:393",
        looks=_misspelt_overrides,
        any_reader=True,
    ),
    Rule(
        id="update-above-batch",
        source="volcengine/verl b178a3cd verl/workers/config/actor.py:203",
        looks=_update_above_batch,
        any_reader=True,
    ),
    Rule(
        id="ranks-above-named-cards",
        source="NVIDIA/nccl 48bb7fe src/init.cc: two ranks on one GPU are an invalid usage",
        looks=_more_ranks_than_named,
        any_reader=True,
    ),
)
