"""A plan with gaps becomes a whole one, or every reason why not."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import catalog
from memsheet.errors import InputError
from memsheet.plan.device import cluster_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import AttentionKind, Loss, RecomputeMode
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import read_model
from memsheet.report.shared.plan_phrases import plan_choice_phrases
from memsheet.resolve import Resolved, resolve_request


def model(name: str = "llama-tiny") -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def asked(name: str = "llama-tiny", gpus: int | None = None, **keys: Any) -> Resolved:
    request = {
        "task": "train",
        "seq_len": 8,
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    return resolve_request(
        request, model(name), cluster_of(catalog.find_device("A100-80GB"), gpus) if gpus else None
    )


def problems(**keys: Any) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        asked(**keys)
    return [(p.field, p.reason) for p in caught.value.problems]


def test_one_gpu_trains_with_transformers_in_bf16_autocast() -> None:
    plan = asked(gpus=1).plan
    assert (plan.engine, plan.zero, plan.training.microbatch) == ("transformers", 0, 1)
    assert (plan.precision.parameters.name, plan.precision.compute.name) == ("fp32", "bf16")
    assert (plan.attention, plan.loss, plan.recompute.mode) == (
        AttentionKind.SDPA,
        Loss.PLAIN,
        RecomputeMode.NONE,
    )


def test_several_gpus_train_with_fsdp2_at_zero_3_and_the_rest_shards() -> None:
    plan = asked(gpus=8).plan
    assert (plan.engine, plan.zero, plan.mesh.dp_shard, plan.reshard_after_forward) == ("fsdp2", 3, 8, True)
    assert (plan.precision.parameters.name, plan.precision.compute.name, plan.precision.reduce.name) == (
        "fp32",
        "bf16",
        "fp32",
    )


def test_at_zero_0_the_rest_replicates() -> None:
    plan = asked(gpus=8, zero=0).plan
    assert (plan.engine, plan.mesh.dp_replicate, plan.mesh.dp_shard) == ("transformers", 8, 1)


def test_what_was_taken_for_granted_is_listed_and_what_was_asked_is_not() -> None:
    assumed = asked(gpus=8, microbatch=2).assumed
    assert any(line.startswith("engine = fsdp2") for line in assumed)
    assert any("dp_shard = 8" in line for line in assumed)
    assert not any(line.startswith(("microbatch", "seq_len")) for line in assumed)


def test_a_mesh_must_multiply() -> None:
    assert problems(gpus=8, mesh__dp_shard=3)[0][0] == "gpus"
    assert problems(gpus=8, mesh__dp_shard=4, engine="fsdp2")[0] == ("gpus", "is not the mesh's product 4")


def test_a_degree_that_does_not_divide_is_refused() -> None:
    reasons = dict(problems(name="llama-3-8b", engine="transformers", mesh__tp=3))
    assert any("heads" in reason or "not modelled" in reason for reason in reasons.values())
    with pytest.raises(InputError) as caught:
        resolve_request({"task": "infer", "mesh.tp": 3, "serving.max_model_len": 8}, model("llama-3-8b"))
    assert [p.reason for p in caught.value.problems] == [
        "does not divide the 32 attention heads of llama-3-8b",
        "neither divides the 8 key/value heads of llama-3-8b nor is a multiple of them",
    ]


def test_layers_that_stages_do_not_divide_are_listed_by_hand() -> None:
    with pytest.raises(InputError, match="does not divide 32 layers over 3 stages"):
        resolve_request(
            {"task": "infer", "engine": "transformers", "mesh.pp": 3, "serving.max_model_len": 8},
            model("llama-3-8b"),
        )
    request = {"task": "infer", "mesh.pp": 3, "layers_per_stage": [11, 11, 10], "serving.max_model_len": 8}
    assert resolve_request(request, model("llama-3-8b")).plan.layers_per_stage == (11, 11, 10)
    assert resolve_request(
        {**request, "layers_per_stage": None}, model("llama-3-8b")
    ).plan.layers_per_stage == (
        11,
        11,
        10,
    )  # vllm's own rule


@pytest.mark.parametrize(
    ("keys", "field", "reason"),
    [
        ({"engine": "nanotron"}, "engine", "is not modelled for train yet"),
        ({"engine": "transformers", "zero": 3}, "zero", "does not exist in transformers, which has 0"),
        ({"engine": "fsdp2", "zero": 1}, "zero", "does not exist in fsdp2, which has 2, 3"),
        ({"seq_len": 0}, "seq_len", "is missing; saved activations depend on it"),
        ({"compile": True}, "compile", "is not modelled yet, and an option is never ignored"),
        (
            {"sequence_parallel": True},
            "sequence_parallel",
            "is not modelled yet, and an option is never ignored",
        ),
        (
            {"recompute__mode": "selective", "engine": "fsdp2"},
            "recompute.mode",
            "is not modelled for fsdp2 yet",
        ),
        (
            {"recompute__every": 2, "recompute__segments": 2},
            "recompute",
            "every, layers and segments exclude one another",
        ),
        ({"recompute__segments": 9}, "recompute.segments", "exceeds the model's 4 layers"),
        ({"attention": "cudnn"}, "attention", "is not modelled for transformers yet"),
        ({"optimizer__name": "shampoo"}, "optimizer.name", "is not modelled for transformers yet"),
        (
            {"optimizer__implementation": "distributed"},
            "optimizer.implementation",
            "is not modelled for adamw yet",
        ),
        (
            {"quantization__weights": "nf4"},
            "quantization.weights",
            "freezes the weights, and nothing else trains",
        ),
        ({"quantization__weights": "q9"}, "quantization.weights", "is not a known format"),
        (
            {"adapter__rank": 8, "adapter__targets": ["Wqkv"]},
            "adapter.targets",
            "names no linear layer of llama-tiny",
        ),
        ({"precision__name": "fsdp2-mixed"}, "precision", "is not how transformers trains"),
        ({"mesh__dp_shard": 2, "engine": "transformers"}, "mesh.dp_shard", "shards nothing at zero 0"),
        (
            {"global_batch": 3, "mesh__dp_replicate": 2},
            "global_batch",
            "is not a multiple of microbatch · data-parallel ranks = 2",
        ),
        ({"serving__max_model_len": 8}, "serving.max_model_len", "has no meaning in train"),
        ({"tp": 2}, "tp", "is not a key of a plan"),
    ],
)
def test_what_cannot_be_is_refused_by_name(keys: dict[str, Any], field: str, reason: str) -> None:
    assert (field, reason) in problems(**keys)


def test_all_problems_come_at_once() -> None:
    assert len(problems(compile=True, attention="cudnn", global_batch=3, mesh__dp_replicate=2)) == 3


def test_learned_positions_end_somewhere() -> None:
    assert ("seq_len", "exceeds the 1024 learned positions of gpt2") in problems(name="gpt2", seq_len=2048)


def test_serving_is_as_long_as_the_model_and_takes_the_cards_to_tensor_parallelism() -> None:
    assert resolve_request({"task": "infer"}, model()).plan.serving.max_model_len == model().max_positions
    cluster, request = (
        cluster_of(catalog.find_device("A100-80GB"), 4),
        {"task": "infer", "serving.max_model_len": 8},
    )
    plan = resolve_request(request, model("llama-3-8b"), cluster).plan
    assert (plan.engine, plan.mesh.tp, plan.serving.max_sequences) == ("vllm", 4, 256)
    plan = resolve_request({**request, "engine": "transformers"}, model("llama-3-8b"), cluster).plan
    assert (plan.engine, plan.mesh.tp, plan.serving.max_sequences) == ("transformers", 4, 1)
    with pytest.raises(
        InputError, match="transformers has no tensor-parallel plan for t5"
    ):  # vllm serves no encoder
        resolve_request(request, model("t5-small"), cluster)


def test_the_cache_is_as_long_as_prompt_and_output_together() -> None:
    plan = resolve_request(
        {"task": "infer", "serving.prompt_tokens": 100, "serving.output_tokens": 28}, model()
    ).plan
    assert plan.serving.max_model_len == 128


def test_dtypes_given_one_by_one_leave_out_what_is_null() -> None:
    keys = {
        "precision__parameters": "bf16",
        "precision__gradients": "fp32",
        "precision__master_weights": "fp32",
        "precision__moments": "fp32",
    }
    precision = asked(**keys).plan.precision
    assert (precision.parameters.name, precision.compute.name, precision.gradients.name) == (
        "bf16",
        "bf16",
        "fp32",
    )
    assert precision.master_weights is not None
    assert asked(**{**keys, "precision__master_weights": None}).plan.precision.master_weights is None


def test_adapters_take_pefts_default_targets_and_say_so() -> None:
    resolved = asked(adapter__rank=8)
    assert resolved.plan.adapter is not None
    assert resolved.plan.adapter.targets == ("q_proj", "v_proj")
    assert any("peft" in line for line in resolved.assumed)


def test_accumulation_is_what_the_global_batch_leaves() -> None:
    assert asked(gpus=4, microbatch=2, global_batch=64).plan.accumulation == 8
    assert asked(gpus=4, microbatch=2).plan.accumulation == 1


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(
            {"recompute__mode": "none", "recompute__every": 2}, id="recompute.every without recompute"
        ),
        pytest.param(
            {"task": "infer", "seq_len": None, "serving__max_model_len": 8, "serving__prompt_tokens": 9},
            id="a prompt longer than the model's",
        ),
    ],
)
def test_an_option_is_never_ignored(keys: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        asked(**keys)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v3", "minimax-m2"])
@pytest.mark.parametrize(
    "lora", [{}, {"adapter.rank": 16}, {"adapter.rank": 16, "quantization.weights": "nf4"}]
)
def test_a_model_that_is_released_quantized_trains_dequantized(name: str, lora: dict[str, Any]) -> None:
    found = asked(name, 1, engine="transformers", **lora)
    stored = found.plan.quantization.weights.name if found.plan.quantization else None
    assert stored == lora.get("quantization.weights")
    assert any("training dequantizes it" in word for word in found.assumed)


@pytest.mark.parametrize(("ep", "hint"), [(7, "one of 1, 2, 4, 8"), (16, "one of 1, 2, 4, 8")])
def test_degrees_that_divide_the_experts_and_the_ranks_are_hinted_at(ep: int, hint: str) -> None:
    with pytest.raises(InputError) as found:
        asked("qwen3-30b-a3b", 8, engine="megatron", mesh__ep=ep)
    assert [(one.field, one.hint) for one in found.value.problems] == [("mesh.ep", hint)]


@pytest.mark.parametrize(("zero", "said"), [(0, "muon"), (1, "muon distributed")])
def test_an_optimizer_is_called_distributed_where_its_states_are(zero: int, said: str) -> None:
    plan = asked("llama-3.2-1b", 8, engine="megatron", zero=zero, optimizer__name="muon").plan
    assert said in list(plan_choice_phrases(plan))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"precision__compute": "bf16"}, True),
        ({"precision__compute": "bf16", "precision__parameters": "fp32"}, False),
        ({"precision__name": "bf16-autocast"}, False),
        ({"precision__compute": "bf16", "engine": "deepspeed"}, False),  # which keeps parameters in it, too
    ],
)
def test_what_parameters_are_kept_in_is_told_where_only_what_is_computed_in_is_said(
    keys: dict[str, Any], *, told: bool
) -> None:
    lines = [line for line in asked(gpus=1, **keys).assumed if line.startswith("precision")]
    assert lines == (["precision.parameters = fp32 (precision.compute = bf16 is said alone)"] if told else [])


def test_a_layout_of_several_gpus_that_nobody_names_tells_the_other() -> None:
    """And the flag that it names is that one."""
    told = next(line for line in asked(gpus=2).assumed if line.startswith("engine"))
    assert "--zero 0" in told
    plan = asked(gpus=2, zero=0).plan
    assert (plan.engine, plan.mesh.dp_replicate, plan.mesh.dp_shard) == ("transformers", 2, 1)
    assert not any("--zero 0" in line for line in asked(gpus=2, engine="fsdp2").assumed)


def test_where_no_server_has_a_sheet_for_a_family_the_library_has() -> None:
    """vLLM took MiniMax's lightning attention out, SGLang has none, and llama.cpp's is not listed here."""
    sizes = {"hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}
    kinds = ["linear_attention", "full_attention"] * 4
    spec = read_hf_config(
        {"model_type": "minimax", "num_hidden_layers": 8, "layer_types": kinds, "vocab_size": 1000, **sizes}
    )
    found = resolve_request({"task": "infer"}, spec, cluster_of(catalog.find_device("H100-80GB"), 8))
    assert found.plan.engine == "transformers"
