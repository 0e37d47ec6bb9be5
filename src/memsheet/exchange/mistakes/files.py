"""Mistakes that stand in a file: keys, words and sizes that its engine refuses, ignores or reads otherwise
than meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memsheet.exchange.mistakes.batch_scripts import COUNTED, differing_counts
from memsheet.exchange.mistakes.case import TRAINERS, Case, FoundMistake, Rule
from memsheet.exchange.mistakes.server_case import FLAGS
from memsheet.exchange.shared.file_format import MORE, FileReading
from memsheet.exchange.shared.program_releases import (
    is_key_of_no_release,
    is_key_typo,
    is_strict_group,
    keys_known,
)
from memsheet.exchange.shared.script_places import OF_OWN_SCRIPT
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.mistakes.trainer import is_recompute_of_fsdp
    from memsheet.exchange.mistakes.zero import mismatched_settings


def _disagreeing_files(case: Case) -> Iterator[FoundMistake]:
    headers = {name for name, *_ in differing_counts(case)}  # of which the rule of batch scripts tells
    mismatched = list(mismatched_settings(case)) if any(case.of("deepspeed")) else []
    told = tuple(keys for keys, _ in mismatched if keys)
    yield from (found for _, found in mismatched)
    for one in case.together.disagree:
        if told and one.key.startswith(told):
            continue
        if one.key in COUNTED and headers.intersection(name for name, _ in one.said):
            continue
        said = ", ".join(f"{name} says {value}" for name, value in one.said)
        yield FoundMistake(where=one.key.lstrip("@"), says=said, cure="say it once, or the same everywhere")


def _unknown_file_keys(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.reads.items():
        own = str(read.values.get(MORE, "")).startswith(OF_OWN_SCRIPT)
        for at, near in () if own else read.unknown:
            group = at.rsplit(".", 1)[0] if "." in at else ""
            strict = is_strict_group(read, group)
            if any(key.at.startswith(f"{at}.") for key in read.form.keys):
                yield FoundMistake(
                    where=f"{name}: {at}",
                    says="takes keys of its own, not a value",
                    cure=f'"{at}": {{"enabled": true}}, for example',
                    stops=at in read.form.strict,
                )
                continue
            wrong = strict and (
                keys_known(read) or is_key_typo(at, near) or is_key_of_no_release(read, group, near)
            )
            yield FoundMistake(
                where=f"{name}: {at}",
                says=_unknown_key_verdict(read, group, strict=strict, wrong=wrong),
                cure=_near_key(name, read, near or _joined_flag(read, at))
                or _left_out(wrong=wrong, strict=strict),
                stops=wrong,
                may_stop=strict and not wrong and read.form.keys_complete,
                unheard=not strict and any(key.at == near for key in read.form.keys),
            )


SWITCHED_ON_BY: Mapping[str, str] = {"lora_r": "use_peft"}
"""Keys that do nothing unless another is on (huggingface/trl f2cd577 trl/trainer/utils.py,
get_peft_config).
"""


JOINED = late_pattern(r"(?P<flag>-[a-z]{2,})(?P<number>\d+)")


def _joined_flag(read: FileReading, at: str) -> str:
    """A server's flag of several letters and its number, which argparse takes apart alone (argparse,
    _get_option_tuples: of one dash the first letter is the option).
    """
    found = JOINED.fullmatch(at) if read.form.name in FLAGS else None
    return f"{found['flag']} {found['number']}" if found else ""


def _near_key(name: str, read: FileReading, near: str) -> str:
    """The key that may be meant, with the one that switches it on where nobody does: as flags of a command,
    else as keys.
    """
    if not near:
        return ""
    switch = SWITCHED_ON_BY.get(near)
    if switch is None or read.values.get(switch) or not any(key.at == switch for key in read.form.keys):
        return f"{near}?"
    return (
        f"{switch}: true, {near}?" if name.endswith((".yaml", ".yml", ".json")) else f"--{switch} --{near}?"
    )


def _unknown_key_verdict(read: FileReading, group: str, *, strict: bool, wrong: bool) -> str:
    """What comes of a key that nobody knows: sure only where the program that reads the file is known, and
    its release.
    """
    if not read.form.program_known(read.values):
        return f"is not a key of {read.form.tested}; the program that reads the file may know it"
    if not strict:
        return f"is no key; {_program_release(read)} ignores it silently"
    if wrong:
        return f"is no key; {read.form.tested} refuses to start with it"
    since = read.form.strict_since.get(group)
    others = f"releases before {since} ignore it" if since else "another release may know it"
    return f"is no key of {read.form.tested}, which would refuse it; {others}"


def _program_release(read: FileReading) -> str:
    """The program of a file, and the release that is said of it, or that was read."""
    return f"{read.form.tested.split()[0]} {read.release}" if read.release else read.form.tested


def _left_out(*, wrong: bool, strict: bool) -> str:
    return "leave it out" if wrong or not strict else "say the release: --engine-version"


INSTEAD = {
    "--rope-scaling": (
        "--hf-overrides '{\"rope_parameters\": …}' with the same inside: left out, "
        "positions are no longer scaled"
    ),
    "--rope-theta": '--hf-overrides \'{"rope_parameters": {"rope_theta": …}}\'',
}
"""What took the place of a removed flag that means something (vLLM v0.33.0 config/model.py, hf_overrides)."""


def _removed_file_keys(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.reads.items():
        for gone in sorted(read.form.removed):
            if any(
                (at == gone or at.startswith(f"{gone}.")) and held is not None
                for at, held in read.values.items()
            ):
                sure = keys_known(read)
                older = "" if sure else ", older releases take it (the file names no release)"
                yield FoundMistake(
                    where=f"{name}: {gone}",
                    says=f"was removed: {read.form.tested} refuses to start with it{older}",
                    cure=INSTEAD.get(gone, "leave it out"),
                    stops=sure,
                    may_stop=not sure,
                )


def _both_widths(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.reads.items():
        sign = "--" if "--bf16" in read.values else ""
        on = [
            key
            for key in ("bf16", "fp16")
            if read.values.get(f"{key}.enabled", read.values.get(sign + key)) is True
        ]
        if len(on) == 2:
            yield FoundMistake(
                where=f"{name}: {sign}fp16", says="bf16 and fp16 are both on", cure="keep bf16", stops=True
            )


def _fixed_scale(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        scale = values.get("fp16.loss_scale", 0)
        if values.get("fp16.enabled") is True and scale != 0:
            yield FoundMistake(
                where=f"{name}: fp16.loss_scale",
                says=f"a fixed scale of {scale}: small gradients vanish, large ones overflow for good",
                cure="loss_scale 0, which is dynamic; or bf16",
            )
    for name, values in case.values("megatron"):
        if values.get("--fp16") and values.get("--loss-scale"):
            yield FoundMistake(
                where=f"{name}: --loss-scale",
                says=(
                    f"a fixed scale of {values['--loss-scale']}: small gradients vanish, large ones "
                    "overflow for good"
                ),
                cure="leave it out, which is dynamic; or --bf16",
            )


def _stage_for_parameters(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        stage = values.get("zero_optimization.stage", 0)
        if values.get("zero_optimization.offload_param.device") in ("cpu", "nvme") and stage != 3:
            yield FoundMistake(
                where=f"{name}: zero_optimization.offload_param",
                says=f"is for stage 3 and does nothing at stage {stage}",
                cure="stage 3, or leave it out",
                changes={"zero": 3},
            )


def _partial_offload(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        ratio, stage = (
            values.get("zero_optimization.offload_optimizer.ratio", 1),
            values.get("zero_optimization.stage", 0),
        )
        if isinstance(ratio, int | float) and ratio < 1 and stage != 3:
            yield FoundMistake(
                where=f"{name}: zero_optimization.offload_optimizer.ratio",
                says=f"{ratio} is for stage 3 alone",
                cure="ratio 1, or stage 3",
                stops=True,
            )


def _large_bucket(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        size = values.get("zero_optimization.reduce_bucket_size", 500_000_000)
        if (
            case.answer is not None
            and values.get("zero_optimization.stage")
            and isinstance(size, int | float)
            and size > case.answer.parameters
        ):
            yield FoundMistake(
                where=f"{name}: zero_optimization.reduce_bucket_size",
                says=f"{size:,.0f} elements for {case.answer.parameters:,} parameters",
                cure="about the elements of one layer, or auto",
                saves_bytes=int((size - case.answer.parameters) * 2),
            )


def _second_bucket(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("deepspeed"):
        size = values.get("zero_optimization.reduce_bucket_size", 500_000_000)
        if (
            values.get("zero_optimization.overlap_comm") is True
            and values.get("zero_optimization.stage") in (1, 2)
            and isinstance(size, int | float)
        ):
            yield FoundMistake(
                where=f"{name}: zero_optimization.overlap_comm",
                says="a second bucket is filled while the first is reduced",
                cure="a smaller reduce_bucket_size, or false where memory is short",
                saves_bytes=int(size * 2),
            )


_YAML_WORDS = late_pattern(
    (
        r"^\s*(?:- )?([A-Za-z_]\w*):\s+"
        r"(?:(yes|no|on|off|y|n)|(\d+(?:\.\d*)?[eE]\d+|\d+[eE]-\d+)|(0\d+)|(\d+(?::[0-5]\d)+))\s*(?:#.*)?$"
    ),
    re.IGNORECASE,
)


_TRAPS = (
    "is a truth value in YAML 1.1, not a word", "is text in YAML 1.1, not a number (a dot and a sign are needed)",
    "is a number in base 8 in YAML 1.1", "is a number in base 60 in YAML 1.1",
)  # fmt: skip


def _yaml_traps(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.of("accelerate", *TRAINERS):
        for number, line in enumerate(case.texts[name].splitlines(), start=1):
            told = _YAML_WORDS.match(line)
            if told is not None:
                which = next(n for n in range(4) if told[n + 2])
                cure = (
                    f"'{told[2]}' in quotes, or true or false",
                    "write 2.0e-5",
                    "without the leading zero",
                    "in quotes",
                )[which]
                if which or told[1] in (
                    "mixed_precision",
                    "downcast_bf16",
                    "dynamo_backend",
                    "fsdp",
                    "report_to",
                    "save_strategy",
                    "eval_strategy",
                ):
                    yield FoundMistake(
                        where=f"{name}:{number}: {told[1]}",
                        says=f"{told[which + 2]} {_TRAPS[which]}",
                        cure=cure,
                    )
        del read


def _old_fsdp(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("accelerate"):
        if values.get("distributed_type") == "FSDP" and values.get("fsdp_config.fsdp_version") is None:
            yield FoundMistake(
                where=f"{name}: fsdp_version",
                says="is not said, and accelerate takes 1, which is deprecated",
                cure="fsdp_version: 2",
            )


def _no_wrapping(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("accelerate"):
        policy = values.get("fsdp_config.fsdp_auto_wrap_policy")
        if values.get("distributed_type") == "FSDP" and policy in (None, "NO_WRAP"):
            yield FoundMistake(
                where=f"{name}: fsdp_auto_wrap_policy",
                says="without one the model is a single unit, gathered whole",
                cure="fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            )


def _strategy_word(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("accelerate"):
        told = values.get("fsdp_config.fsdp_reshard_after_forward")
        if (
            str(values.get("fsdp_config.fsdp_version")) == "2"
            and isinstance(told, str)
            and told.lower() not in ("true", "false")
        ):
            yield FoundMistake(
                where=f"{name}: fsdp_reshard_after_forward",
                says=f"{told} is of version 1; version 2 takes a truth value",
                cure="true",
                stops=True,
            )


def _two_meanings(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.reads.items():
        for at in read.values:
            last = at.rsplit(".", 1)[-1]
            if last in (
                "sequence_parallel_size",
                "parallelism_config_sp_size",
                "sequence_parallel_degree",
                "sequence_parallel",
            ) and read.values[at] not in (1, False):
                yield FoundMistake(
                    where=f"{name}: {at}",
                    says=(
                        "ranks share a sequence (Ulysses); Megatron's sequence parallel splits norms "
                        "over the tp ranks instead"
                    ),
                    cure="check which is meant: cp splits sequences, sequence_parallel goes with tp",
                )


def _recompute_gathers(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(*TRAINERS):
        if (
            values.get("gradient_checkpointing") is True
            and values.get("fsdp")
            and not values.get("deepspeed")
            and not is_recompute_of_fsdp(values)
        ):
            yield FoundMistake(
                where=f"{name}: gradient_checkpointing",
                says="with FSDP it gathers parameters once more in backward",
                cure="fsdp_config: {activation_checkpointing: true} in its place",
            )


_DS = "DeepSpeed 0.19.8 deepspeed/runtime"
FILES = (
    Rule(
        id="files-disagree",
        source="transformers 5.23 integrations/deepspeed.py:261: the Trainer refuses values that mismatch",
        looks=_disagreeing_files,
    ),
    Rule(
        id="unknown-key",
        source=f"{_DS}/config_utils.py:110; accelerate 1.15 commands/config/config_args.py:157",
        looks=_unknown_file_keys,
    ),
    Rule(id="removed-key", source=f"{_DS}/config.py:133 of the release", looks=_removed_file_keys),
    Rule(
        id="bf16-and-fp16",
        source=(
            f"{_DS}/config.py:828; transformers 5.23 training_args.py:1785; NVIDIA/Megatron-LM d98e8a64 "
            "megatron/training/arguments.py:1196"
        ),
        looks=_both_widths,
    ),
    Rule(
        id="fixed-loss-scale",
        source=(
            f"{_DS}/precision_config.py:115: 0 is dynamic; NVIDIA/Megatron-LM 23e00ed "
            "megatron/training/arguments.py:2281"
        ),
        looks=_fixed_scale,
    ),
    Rule(
        id="offload-param-stage",
        source=f"{_DS}/zero/config.py:157: valid only with stage 3",
        looks=_stage_for_parameters,
    ),
    Rule(id="partial-offload-stage", source=f"{_DS}/zero/config.py:392", looks=_partial_offload),
    Rule(
        id="bucket-above-model", source=f"{_DS}/zero/config.py:113: elements, not bytes", looks=_large_bucket
    ),
    Rule(id="second-bucket", source=f"{_DS}/zero/stage_1_and_2.py:2493", looks=_second_bucket),
    Rule(id="yaml-1.1", source="PyYAML 6.0.3 resolver.py; yaml.org/type/{bool,int,float}", looks=_yaml_traps),
    Rule(id="fsdp-version", source="accelerate 1.15 commands/launch.py:516", looks=_old_fsdp),
    Rule(id="no-wrap-policy", source="accelerate 1.15 utils/dataclasses.py:1910", looks=_no_wrapping),
    Rule(id="fsdp1-words", source="accelerate 1.15 utils/dataclasses.py:1877", looks=_strategy_word),
    Rule(
        id="two-sequence-parallels",
        source="Jacobs et al. 2023, DeepSpeed-Ulysses; Korthikanti et al. 2022, section 4.2",
        looks=_two_meanings,
    ),
    Rule(id="recompute-gathers", source="transformers 5.23 training_args.py:2795", looks=_recompute_gathers),
)
