"""Every rule of the lint finds its mistake, says what cures it, and is silent where there is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.exchange.mistakes import SERVED, TRAINING, rules_of_kind
from memsheet.exchange.mistakes.files import FILES
from memsheet.exchange.mistakes.plans import PLANS
from memsheet.questions.check import check_configuration_files
from memsheet.report.shared.checked import Checked

GOOD: dict[str, Any] = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}  # fmt: skip
FSDP = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: {reshard}
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""
WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
}


def checked(
    folder: Path,
    files: dict[str, str],
    *,
    model: str | None = "llama-3.2-1b",
    gpus: str | None = "8xA100-80GB",
    **flags: Any,
) -> Checked:
    for name, text in files.items():
        (folder / name).write_text(text)
    return check_configuration_files(
        (str(folder),), model, {**WHERE, "gpus": gpus}, {"seq_len": 2048, **flags}
    )


def deepspeed(**changes: Any) -> str:
    return json.dumps({key: value for key, value in {**GOOD, **changes}.items() if value is not None})


def zero(**changes: Any) -> str:
    return deepspeed(zero_optimization={"stage": 2, **changes})


ROTATED = """from peft import OFTConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", torch_dtype="bfloat16")
model = get_peft_model(model, OFTConfig({said}))
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=args).train()
"""
ACCUMULATES = "per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nbf16: true\n"
DS, YAML, ARGS = "ds_config.json", "accelerate.yaml", "args.yaml"
CASES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "files-disagree": ({DS: deepspeed(), ARGS: "per_device_train_batch_size: 4\nbf16: true\ndeepspeed: ds_config.json\n"}, {}),
    "unknown-key": ({DS: deepspeed(gradient_cliping=1.0)}, {}),
    "removed-key": ({DS: deepspeed(elasticity={"enabled": False})}, {}),
    "bf16-and-fp16": ({DS: deepspeed(fp16={"enabled": True})}, {}),
    "fixed-loss-scale": ({DS: deepspeed(bf16=None, fp16={"enabled": True, "loss_scale": 128})}, {}),
    "no-sixteen-bits": ({DS: deepspeed(bf16=None)}, {}),
    "offload-param-stage": ({DS: zero(offload_param={"device": "cpu"})}, {}),
    "partial-offload-stage": ({DS: zero(offload_optimizer={"device": "cpu", "ratio": 0.5})}, {}),
    "zero3-where-less-fits": ({DS: zero(stage=3)}, {}),
    "offload-without-need": ({DS: zero(offload_optimizer={"device": "cpu"})}, {}),
    "bucket-above-model": ({DS: zero(reduce_bucket_size=2_000_000_000)}, {}),
    "second-bucket": ({DS: zero(overlap_comm=True)}, {}),
    "few-kv-heads": (
        {YAML: FSDP.format(reshard="true") + "parallelism_config:\n  parallelism_config_tp_size: 16\n  parallelism_config_dp_shard_size: 1\n"},
        {"gpus": "16xA100-80GB"},
    ),
    "yaml-1.1": ({YAML: FSDP.format(reshard="true").replace("mixed_precision: bf16", "mixed_precision: no")}, {}),
    "eager-attention": ({DS: deepspeed()}, {"attention": "eager"}),
    "targets-passed-over": ({ARGS: "per_device_train_batch_size: 1\nmax_length: 512\nuse_peft: true\nlora_target_modules: [q_proj, gate_projection]\nmodel_name_or_path: Qwen/Qwen3-0.6B\nbf16: true\nuse_liger_kernel: true\ndataset_name: a\n"}, {}),
    "blocks-adjusted": ({"train.py": ROTATED.format(said="oft_block_size=48")}, {"model": "llama-3.2-1b"}),
    "no-reshard": ({YAML: FSDP.format(reshard="false")}, {"model": "llama-3-70b"}),
    "whole-gradients": ({YAML: FSDP.format(reshard="true"), ARGS: ACCUMULATES}, {"model": "llama-3-70b", "loss": "fused"}),
    "fsdp-version": ({YAML: FSDP.format(reshard="true").replace("  fsdp_version: 2\n", "")}, {}),
    "no-wrap-policy": ({YAML: FSDP.format(reshard="true").replace("TRANSFORMER_BASED_WRAP", "NO_WRAP")}, {}),
    "fsdp1-words": ({YAML: FSDP.format(reshard="FULL_SHARD")}, {}),
    "two-sequence-parallels": ({DS: deepspeed(sequence_parallel_size=2)}, {}),
    "whole-logits": ({DS: deepspeed(train_micro_batch_size_per_gpu=8, gradient_accumulation_steps=1)}, {}),
    "fragmentation": ({DS: deepspeed()}, {"model": "llama-3-70b"}),
    "recompute-gathers": (
        {ARGS: "per_device_train_batch_size: 1\nbf16: true\ngradient_checkpointing: true\nfsdp: true\n"}, {}
    ),
}  # fmt: skip


def rules(found: Checked) -> set[str]:
    return {rule.id for rule, _ in found.mistakes}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.id for rule in (*FILES, *PLANS)}
    rules = [rule for kind in {*SERVED, *TRAINING} for rule in rules_of_kind(kind)]
    assert all(rule.source for rule in rules)
    assert len(rules) == len({rule.id for rule in rules})


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_its_mistake(rule: str, tmp_path: Path) -> None:
    files, options = CASES[rule]
    found = checked(tmp_path, files, **options)
    assert rule in rules(found)
    assert all(one.cure and one.says and one.where for _, one in found.mistakes)


def test_gradients_that_every_micro_batch_reduces_are_no_mistake(tmp_path: Path) -> None:
    """The file that the cure asks for, and one whose steps are of one micro-batch."""
    files, options = CASES["whole-gradients"]
    said = "accelerator_config:\n  gradient_accumulation_kwargs:\n    sync_each_batch: true\n"
    for text in (ACCUMULATES + said, ACCUMULATES.replace("steps: 4", "steps: 1")):
        assert "whole-gradients" not in rules(checked(tmp_path, {**files, ARGS: text}, **options))


@pytest.mark.parametrize(("model", "offered"), [("gemma-2-9b", False), ("llama-3.1-8b", True)])
def test_no_attention_is_offered_that_a_family_lacks(model: str, tmp_path: Path, *, offered: bool) -> None:
    found = checked(tmp_path, {ARGS: ACCUMULATES}, model=model, gpus="1xA100-80GB", attention="eager")
    cures = [one for rule, one in found.mistakes if rule.id == "eager-attention"]
    assert bool(cures) is offered
    assert all(one.changes == {"attention": "sdpa"} for one in cures)


def test_a_sound_file_has_no_mistakes(tmp_path: Path) -> None:
    found = checked(tmp_path, {DS: deepspeed()}, loss="fused")
    assert rules(found) == set()
    assert not found.stops
    assert found.result is not None
    assert found.result.value == "fits"


def test_the_bytes_of_a_cure_are_those_of_the_cured_plan(tmp_path: Path) -> None:
    found = checked(tmp_path, {DS: deepspeed()}, attention="eager")
    cured = checked(tmp_path, {DS: deepspeed()})
    (one,) = [one for rule, one in found.mistakes if rule.id == "eager-attention"]
    assert found.answer is not None
    assert cured.answer is not None
    assert one.saves_bytes == found.answer.sheets[0].device.value - cured.answer.sheets[0].device.value > 0


def test_what_the_engine_refuses_stops(tmp_path: Path) -> None:
    assert checked(tmp_path, {DS: deepspeed(train_batch_size=63)}).stops
    assert checked(tmp_path, {DS: zero(overlap_com=True)}).stops
    assert not checked(tmp_path, {DS: deepspeed(gradient_cliping=1.0)}).stops


def test_what_is_not_accounted_leaves_no_sure_verdict(tmp_path: Path) -> None:
    found = checked(tmp_path, {DS: zero(stage=3, zero_quantized_nontrainable_weights=True)})
    assert found.result is not None
    assert found.result.value == "uncertain"
    assert "zero_quantized_nontrainable_weights" in found.doubt


def test_a_second_copy_of_the_parameters_is_in_the_sheet(tmp_path: Path) -> None:
    plain, second = (
        checked(tmp_path, {DS: zero(stage=3, zero_hpz_partition_size=size, zero_quantized_gradients=True)})
        for size in (1, 4)
    )
    assert plain.answer is not None
    assert second.answer is not None
    assert second.answer.plan.gathers.secondary_shard == 4
    assert second.answer.sheets[0].peak.value > plain.answer.sheets[0].peak.value
    assert not second.doubt


def test_parameters_that_are_gathered_in_eight_bits_widen_the_range(tmp_path: Path) -> None:
    plain, eight = (checked(tmp_path, {DS: zero(stage=3, zero_quantized_weights=on)}) for on in (False, True))
    assert any(one.at.endswith("zero_quantized_weights") for one in eight.moved)
    assert not any(one.at.endswith("zero_quantized_weights") for one in plain.moved)


def test_a_bucket_that_may_not_fit_leaves_no_sure_verdict(tmp_path: Path) -> None:
    assert checked(tmp_path, {DS: zero(reduce_bucket_size=50_000_000_000)}).result.value == "uncertain"  # type: ignore[union-attr]
    assert checked(tmp_path, {DS: zero(reduce_bucket_size=400_000_000)}).result.value == "fits"  # type: ignore[union-attr]


def test_a_file_that_is_named_and_not_given_leaves_no_sure_verdict(tmp_path: Path) -> None:
    args = (
        "per_device_train_batch_size: 1\nbf16: true\ngradient_accumulation_steps: 8\ndeepspeed: "
        "ds_config.json\n"
    )
    found = checked(tmp_path, {ARGS: args})
    assert (
        found.doubt == "ds_config.json is named and is not among the files: name it on the command line, too"
    )
    assert not checked(tmp_path, {ARGS: args, DS: deepspeed()}).doubt


def test_a_default_that_is_not_modelled_leaves_no_sure_verdict(tmp_path: Path) -> None:
    text = FSDP.format(reshard="true")
    assert not checked(tmp_path, {YAML: text}, microbatch=1).doubt
    found = checked(
        tmp_path, {YAML: text.replace("  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n", "")}, microbatch=1
    )
    assert "NO_WRAP" in found.doubt


def test_a_value_where_a_group_stands_stops(tmp_path: Path) -> None:
    found = checked(tmp_path, {DS: deepspeed(bf16=True)})
    assert found.stops
    assert any("not a value" in one.says for _, one in found.mistakes)


def test_without_a_model_the_keys_and_mistakes_are_told(tmp_path: Path) -> None:
    found = checked(tmp_path, {DS: deepspeed(train_batch_size=63)}, model=None)
    assert found.answer is None
    assert rules(found) == {"batch-product"}
    assert "--model" in found.no_model


@pytest.mark.parametrize(
    "rule",
    [name for name, (files, _) in CASES.items() if [*files] == [DS] and name != "two-sequence-parallels"],
)
def test_deepspeed_itself_stops_where_the_lint_says_so(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda: 0)
    monkeypatch.setattr("deepspeed.comm.get_world_size", lambda: 8)
    files, options = CASES[rule]
    if checked(tmp_path, files, **options).stops:
        with pytest.raises(Exception, match=r"."):
            config.DeepSpeedConfig(json.loads(files[DS]))
    else:
        config.DeepSpeedConfig(json.loads(files[DS]))


def test_an_empty_group_that_was_removed_stops_where_the_release_is_said(tmp_path: Path) -> None:
    assert checked(tmp_path, {DS: deepspeed(elasticity={})}, engine_version="0.19.8").stops
    unsaid = checked(tmp_path, {DS: deepspeed(elasticity={})})
    assert "removed-key" in rules(unsaid)
    assert not unsaid.stops


@pytest.mark.parametrize(
    ("said", "stops"),
    [("r=8, oft_block_size=32", True), ("r=0, oft_block_size=32", False), ("r=8, oft_block_size=0", False), ("r=8", False)],
)  # fmt: skip
def test_rotations_have_a_number_of_blocks_or_their_size(said: str, stops: bool, tmp_path: Path) -> None:
    found = checked(tmp_path, {"train.py": ROTATED.format(said=said)})
    assert any(rule.id == "blocks-said-twice" and one.stops for rule, one in found.mistakes) is stops
    assert found.stops is stops


def test_what_is_not_accounted_of_an_adapter_has_no_most(tmp_path: Path) -> None:
    found = checked(tmp_path, {"train.py": ROTATED.format(said="block_share=True")})
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.no_most
    (tmp_path / "train.py").write_text(ROTATED.format(said="coft=True, eps=1e-4"))
    exact = checked(tmp_path, {})
    assert not exact.doubt
