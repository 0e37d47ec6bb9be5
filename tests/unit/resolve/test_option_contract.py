"""An option is honoured or refused, never accepted and ignored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet import catalog
from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.check import RULES, flatten_document
from memsheet.plan.defaults import DESCRIPTIVE
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.document import plan_document
from memsheet.plan.engine_registry import MODELLED
from memsheet.plan.engine_registry import find_engine as found_engine
from memsheet.plan.model import ModelSpec, Role, StoredQuantization, Weight
from memsheet.plan.plan import RecomputeMode
from memsheet.readers.model import read_model
from memsheet.resolve import Resolved, resolve_document, resolve_request

TRAIN, INFER = (
    {"task": "train", "seq_len": 1024},
    {"task": "infer", "engine": "transformers", "serving.max_model_len": 64},
)
LORA = {**TRAIN, "adapter.rank": 8, "adapter.targets": ["q_proj"]}


def model(name: str = "llama-tiny") -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def cards(count: int = 1) -> Cluster:
    return cluster_of(catalog.find_device("H100-80GB"), count)


def asked(request: Mapping[str, Any], spec: ModelSpec | None = None, gpus: int = 1) -> Resolved:
    return resolve_request(request, spec or model(), cards(gpus))


def refused(request: Mapping[str, Any], spec: ModelSpec | None = None, gpus: int = 1) -> set[str]:
    with pytest.raises(InputError) as caught:
        asked(request, spec, gpus)
    return {problem.field for problem in caught.value.problems}


def stored(weights: str) -> ModelSpec:
    return replace(
        model(), quantization=StoredQuantization(method="bitsandbytes", weights=weights, skip=("lm_head",))
    )


def test_the_plan_of_experts_on_two_cards_reads_back() -> None:
    first = memsheet.infer("qwen3-30b-a3b", gpus="2xH100-80GB", max_model_len=8192)
    again = memsheet.infer(
        "qwen3-30b-a3b", plan=plan_document(first.plan, model="qwen3-30b-a3b", cluster=first.cluster)
    )
    assert again.plan == first.plan
    assert "mesh.etp" in refused(
        {**INFER, "engine": "transformers", "mesh.tp": 2, "mesh.etp": 1}, model("qwen3-30b-a3b"), 2
    )


@every(
    "request_, field",
    [
        ({**TRAIN, "adapter.targets": ["q_proj"]}, "adapter.targets"), ({**TRAIN, "adapter.alpha": 16}, "adapter.alpha"),
        ({**TRAIN, "adapter.dtype": "bf16"}, "adapter.dtype"), ({**TRAIN, "adapter.kind": "lora"}, "adapter.kind"),
        ({**INFER, "microbatch": 2, "serving.max_sequences": 4}, "microbatch"),
        ({**INFER, "serving.batch": 2, "serving.max_sequences": 4}, "serving.batch"), ({**INFER, "seq_len": 32}, "seq_len"),
        ({**INFER, "serving.prompt_tokens": 60, "serving.output_tokens": 5}, "serving.output_tokens"),
        ({**INFER, "quantization.group_size": 64}, "quantization.group_size"), ({**INFER, "quantization.skip": ["lm_head"]}, "quantization.skip"),
        ({**INFER, "quantization.double_quant": True}, "quantization.double_quant"),
        ({**INFER, "quantization.weights": "nf4", "quantization.group_size": 128}, "quantization.group_size"),
        ({**INFER, "quantization.weights": "int4", "quantization.skip": ["nothing"]}, "quantization.skip"),
        ({**TRAIN, "moe.balanced": False}, "moe.balanced"), ({**TRAIN, "schedule": "1f1b"}, "schedule"),
        ({**TRAIN, "microbatch": 0}, "microbatch"), ({**TRAIN, "global_batch": 0}, "global_batch"),
        ({**INFER, "serving.max_sequences": 0}, "serving.max_sequences"), ({**INFER, "serving.max_model_len": 0}, "serving.max_model_len"),
        *[({**TRAIN, f"precision.{key}": "fp8"}, f"precision.{key}") for key in ("parameters", "compute", "gradients", "reduce", "moments")],
        ({**TRAIN, "precision.master_weights": "bf16"}, "precision.master_weights"), ({**INFER, "serving.kv_dtype": "int4"}, "serving.kv_dtype"),
        ({**LORA, "precision.name": "bf16-master"}, "precision"), ({**LORA, "precision.name": "fsdp2-mixed"}, "precision"),
        ({**LORA, "precision.moments": "bf16"}, "precision.moments"), ({**INFER, "precision.moments": "fp32"}, "precision.moments"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(request_: dict[str, Any], field: str) -> None:
    assert field in refused(request_)


@pytest.mark.parametrize(("zero", "reshard"), [(2, True), (3, False)])
def test_resharding_is_what_zero_3_is(zero: int, reshard: bool) -> None:
    assert refused({**TRAIN, "zero": zero, "reshard_after_forward": reshard}, gpus=2) == {
        "reshard_after_forward"
    }
    assert asked({**TRAIN, "reshard_after_forward": False}, gpus=2).plan.zero == 2


def test_dropout_counts_where_the_family_has_some() -> None:
    with pytest.raises(InputError, match="dropout"):
        memsheet.train("llama-tiny", seq_len=1024, dropout=0.1)
    assert asked({**TRAIN, "dropout": 0.1}, model("gpt2")).plan.dropout
    assert asked({**TRAIN, "dropout": 0.1, "attention": "eager"}).plan.dropout


def test_a_load_alone_has_no_sizes() -> None:
    assert (
        asked(
            {"task": "infer", "phase": "load", "microbatch": 0, "global_batch": 0, "seq_len": 0}
        ).plan.serving.phase
        == "load"
    )


def test_a_quantized_checkpoint_trains_adapters_or_nothing() -> None:
    assert refused(TRAIN, stored("nf4")) == {"quantization_config"}
    assert refused(LORA, stored("gptq-int4")) == {"quantization_config"}
    found = asked(LORA, stored("nf4-single")).plan.quantization
    assert found is not None
    assert found.weights.name == "nf4-single"


@pytest.mark.parametrize(
    ("method", "weights"),
    [("mxfp4", "mxfp4"), ("fp8", "fp8-block"), ("fp8", "fp8"), ("compressed-tensors", "int4")],
)
@pytest.mark.parametrize("request_", [TRAIN, LORA, {**LORA, "quantization.weights": "nf4"}])
def test_what_its_loader_dequantizes_trains_as_the_model_released_whole(
    method: str, weights: str, request_: dict[str, Any]
) -> None:
    released = replace(model(), quantization=StoredQuantization(method=method, weights=weights))
    found, whole = asked(request_, released), asked(request_, model())
    assert found.plan == whole.plan
    dtype = "fp32" if request_ is TRAIN else "bf16"
    told = [
        line for line in found.assumed if f"released in {weights}; training dequantizes it to {dtype}" in line
    ]
    assert len(told) == 1


def test_what_no_loader_dequantizes_does_not_train_in_another_precision() -> None:
    """The hint leads to no second refusal: it names no precision."""
    for method, weights in (("fbgemm_fp8", "fp8"), ("modelopt", "nvfp4"), ("gptq", "gptq-int4")):
        released = replace(model(), quantization=StoredQuantization(method=method, weights=weights))
        with pytest.raises(InputError) as error:
            asked(TRAIN, released)
        assert "precision" not in error.value.problems[0].hint


def test_a_tower_whose_modules_peft_cannot_wrap_is_told_unless_a_pattern_leaves_it_out() -> None:
    path = "model.tower.layers.*.q_proj.linear.weight"
    towered = replace(model(), extras=(Weight(path=path, shape=(4, 4), role=Role.LINEAR),))
    (told,) = [line for line in asked(LORA, towered).assumed if "tower" in line]
    assert told.startswith("adapter.targets of model.tower = none")
    pattern = {**LORA, "adapter.targets": [r"model\.layers\..*\.q_proj"]}
    assert not [line for line in asked(pattern, towered).assumed if "tower" in line]


def test_all_linear_is_every_linear_layer_of_the_blocks() -> None:
    adapter = asked({**LORA, "adapter.targets": ["all-linear"]}).plan.adapter
    assert adapter is not None
    assert adapter.targets == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


def test_a_dtype_nobody_computes_in_is_said() -> None:
    assert any("float64" in line for line in asked(INFER, replace(model(), dtype="float64")).assumed)


# ---- every key ---------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "seq_len": 2048, "vocab_multiple": 1000, "dropout": 0.5, "microbatch": 3, "global_batch": 8, "layers_per_stage": [3, 1],
    "adapter.targets": ["v_proj"], "quantization.weights": "nf4", "quantization.group_size": 32, "quantization.skip": ["q_proj"],
    "serving.max_model_len": 128, "optimizer.name": "sgd", "attention": "eager", "recompute.mode": "full", "precision.name": "fp32",
    "serving.kv_dtype": "fp32", "adapter.full_modules": ["lm_head"], "serving.k_dtype": "q8_0", "fp8.recipe": "mxfp8",
    "optimizer.implementation": "foreach", "loss": "fused", "adapter.kind": "lora", "phase": "load", "engine": "deepspeed", "zero": 2,
    "precision.moments": "bf16", "precision.gradients": "bf16", "precision.reduce": "bf16", "limit_all_gathers": False,
}  # fmt: skip
BY_KIND: dict[str, Any] = {
    "count": 2,
    "flag": True,
    "share": 0.5,
    "number": 1.25,
    "text": "other",
    "texts": ["lm_head"],
    "counts": [3, 1],
    "dtype": "fp32",
    "any": 2,
}
BASES = {
    "train": (TRAIN, 1), "sharded": (TRAIN, 2), "lora": (LORA, 1), "infer": (INFER, 1),
    "quantized": ({**INFER, "quantization.weights": "int4", "serving.prompt_tokens": 32}, 1),
}  # fmt: skip
ELSEWHERE = ("model", "gpus", "task")  # of the question, read before the plan is resolved


def other_value(key: str) -> Any:
    rule = RULES[key]
    return OTHER.get(key, rule.choices[-1] if rule.choices else BY_KIND[rule.kind])


def sheet(request: Mapping[str, Any], gpus: int) -> Any:
    machines = cards(gpus)
    return account_rank(model(), resolve_request(request, model(), machines).plan, machines).items


def _told(key: str, value: Any, request: Mapping[str, Any], gpus: int) -> set[str]:
    """What is taken for granted of an option beside what is without it."""
    asked, usual = (
        resolve_request(one, model(), cards(gpus)).assumed for one in ({**request, key: value}, request)
    )
    return set(asked) - set(usual)


@pytest.mark.parametrize(("storage", "told"), [("bf16", True), ("uint8", False)])
def test_a_packed_type_that_changes_nothing_is_told(storage: str, told: bool) -> None:
    four = {**LORA, "quantization.weights": "nf4"}
    assert any("changes nothing" in one for one in _told("quantization.storage", storage, four, 1)) is told
    with pytest.raises(InputError, match=r"quantization\.storage"):
        resolve_request(
            {**LORA, "quantization.weights": "int8", "quantization.storage": storage}, model(), cards(1)
        )


@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("key", sorted(set(RULES) - set(DESCRIPTIVE) - set(ELSEWHERE)))
def test_every_key_changes_the_sheet_or_is_refused(key: str, base: str) -> None:
    request, gpus = BASES[base]
    value = other_value(key)
    # what holds the peak depends on the length: a change that is hidden behind a larger item at one shows at
    # the other
    lengths = (
        ({"seq_len": 64}, {"seq_len": 1024})
        if base in ("train", "sharded", "lora") and key != "seq_len"
        else ({},)
    )
    if key == "gradient_sync":  # of several micro-batches
        lengths = tuple({**one, "global_batch": 64} for one in lengths)
    try:
        pairs = [(sheet({**request, **n, key: value}, gpus), sheet({**request, **n}, gpus)) for n in lengths]
    except InputError:
        return
    if flatten_document(plan_document(resolve_request(request, model(), cards(gpus)).plan)).get(key) == value:
        return  # the default itself
    if any(
        line.startswith(f"{key} = ") and "changes nothing" in line
        for line in _told(key, value, request, gpus)
    ):
        return
    assert any(changed != usual for changed, usual in pairs)


# ---- a plan as a document ----------------------------------------------------------------------------------

AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
TRAINERS = [name for name in MODELLED if "train" in found_engine(name).tasks]


def resolved(name: str, key: str, value: Any, spec: ModelSpec, *, real: bool) -> Resolved | None:
    """A plan of an engine with one key given, None where it is refused. Every mesh takes as many cards as its
    product.
    """
    request = {**TRAIN, "engine": name, key: value}
    with suppress(InputError):
        return resolve_request(request, spec, None, real=real)
    return None


@pytest.mark.parametrize("real", [False, True], ids=["modelled", "run"])
@pytest.mark.parametrize("name", TRAINERS)
def test_every_plan_that_is_made_reads_back(name: str, real: bool) -> None:
    """What resolve fills in, resolve accepts: as a document a plan goes to the process that traces it and to
    an engine's files.
    """
    changes = [(f"mesh.{axis}", 2) for axis in AXES] + [
        (key, other_value(key)) for key in sorted(set(RULES) - set(ELSEWHERE))
    ]
    made = 0
    for spec in (model(), model("qwen3-30b-a3b")):
        for key, value in changes:
            found = resolved(name, key, value, spec, real=real)
            if found is not None:
                assert resolve_document(plan_document(found.plan), spec, real=real) == found.plan, (
                    spec.name,
                    key,
                )
                made += 1
    assert made > len(AXES)


@every("name", TRAINERS)
@every("part", ["modules", "every", "layers", "segments"])
def test_a_kind_of_recompute_that_is_implied_is_refused_as_if_it_were_named(name: str, part: str) -> None:
    implied = RecomputeMode.SELECTIVE if part == "modules" else RecomputeMode.FULL
    value: Any = ["mlp"] if part == "modules" else 2
    found = resolved(name, f"recompute.{part}", value, model(), real=False)
    if found is not None:
        assert found.plan.recompute.mode is implied
        assert implied in found_engine(name).recompute
    elif implied not in found_engine(name).recompute:
        with pytest.raises(InputError, match=f"recompute.{part}"):
            resolve_request({**TRAIN, "engine": name, f"recompute.{part}": value}, model(), None)


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_what_a_release_cannot_move_to_the_host_is_refused_with_its_reason_and_what_does_it_instead(
    name: str,
) -> None:
    engine = found_engine(name)
    assert engine is not None
    assert not set(engine.never_offloads) & set(engine.offload)
    with pytest.raises(InputError) as refused:
        memsheet.train(
            "llama-2-7b", gpus="8xA100-80GB", seq_len=2048, engine=name, offload="activations", fix=False
        )
    (problem,) = refused.value.problems
    assert problem.field == "offload.activations"
    assert problem.reason == engine.never_offloads["activations"]
    assert problem.hint is not None
    assert "fsdp2" in problem.hint
    assert memsheet.train(
        "llama-2-7b", gpus="8xA100-80GB", seq_len=2048, engine=name, recompute="full", fix=False
    ).sheets
    for other in ("fsdp2", "deepspeed"):
        assert memsheet.train(
            "llama-2-7b",
            gpus="8xA100-80GB",
            seq_len=2048,
            engine=other,
            recompute="full",
            offload="activations",
            fix=False,
        )


def test_a_loss_over_a_vocabulary_is_refused_where_a_model_has_none() -> None:
    with pytest.raises(InputError) as caught:
        memsheet.train("vit-base", loss="fused")
    assert [problem.field for problem in caught.value.problems] == ["loss"]
