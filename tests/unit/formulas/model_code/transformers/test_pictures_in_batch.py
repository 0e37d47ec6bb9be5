"""Batches with pictures: against real steps of the library's code on a processor (transformers 5.23, torch
2.13), and laws.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import memsheet
from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.document import plan_document
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

Request = dict[str, Any]
TEXT: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000,
    "intermediate_size": 704, "max_position_embeddings": 4096, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
}  # fmt: skip
TOWERS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"hidden_size": 128, "depth": 4, "num_heads": 4, "intermediate_size": 352, "out_hidden_size": 256, "fullatt_block_indexes": [1, 3]},
    "qwen2_vl": {"embed_dim": 128, "depth": 4, "num_heads": 4, "mlp_ratio": 4, "hidden_size": 256},
}  # fmt: skip
CAST: Request = {"precision.name": "bf16-autocast"}
WIDE: Request = {"precision.name": "fp32"}
PURE: Request = {"precision.name": "bf16-pure"}
AGAIN: Request = {"recompute.mode": "full"}
CLOSE = 5e-4  # lists of indices and other whole numbers of a few bytes a patch are left out


def model(name: str) -> Any:
    return read_hf_config(
        {
            "model_type": name,
            "text_config": {**TEXT, "model_type": f"{name}_text"},
            "vision_config": TOWERS[name],
        }
    )


def sheet(name: str, asked: Request, *, device: str = "cpu") -> Sheet:
    request: Request = {
        "engine": "transformers", "attention": "sdpa", "seq_len": 320, "microbatch": 2, "image_tokens": 256,
        "optimizer.implementation": "foreach",
    }  # fmt: skip
    spec = model(name)
    return account_rank(spec, resolve_request({**request, **asked}, spec).plan, device=device)


@pytest.mark.parametrize(
    ("name", "asked", "forward", "loss", "backward"),
    [
        ("qwen2_5_vl", CAST, 185_645_604, 199_466_428, 201_344_428), ("qwen2_5_vl", WIDE, 235_463_204, 245_306_812, 250_416_556),
        ("qwen2_5_vl", PURE, 136_628_516, 148_049_084, 150_598_828), ("qwen2_5_vl", {**WIDE, **AGAIN}, 94_335_740, 98_772_628, 125_605_380),
        ("qwen2_5_vl", {**CAST, **AGAIN}, 100_764_412, 111_914_644, 116_422_904), ("qwen2_vl", CAST, 175_523_368, 189_868_480, 191_748_016),
    ],
)  # fmt: skip
def test_a_step_with_pictures_has_the_high_water_marks_of_a_real_one(
    name: str, asked: Request, forward: int, loss: int, backward: int
) -> None:
    found = sheet(name, asked)
    for instant, real in ((Instant.FORWARD, forward), (Instant.LOSS, loss), (Instant.BACKWARD, backward)):
        assert found.at(instant).value == pytest.approx(real, rel=CLOSE)


LORA: Request = {"adapter.rank": 8, "adapter.targets": ["q_proj", "v_proj"]}


@pytest.mark.parametrize(
    ("name", "asked", "loss", "backward"),
    [
        ("qwen2_5_vl", {**CAST, **LORA}, 74_583_000, 76_469_192), ("qwen2_5_vl", {**CAST, **LORA, **AGAIN}, 55_650_608, 57_487_648),
        ("qwen2_vl", {**PURE, **LORA, **AGAIN, "image_tokens": 300, "optimizer.implementation": "fused"}, 42_189_284, 44_411_348),
    ],
)  # fmt: skip
def test_adapters_beside_a_frozen_tower_have_the_high_water_marks_of_a_real_step(
    name: str, asked: Request, loss: int, backward: int
) -> None:
    found = sheet(name, asked)
    for instant, real in ((Instant.LOSS, loss), (Instant.BACKWARD, backward)):
        assert found.at(instant).value == pytest.approx(real, rel=CLOSE)


def test_a_frozen_tower_leaves_nothing_for_backward() -> None:
    """Unless checkpoints ask for a gradient of the patches' embeddings."""
    for asked, leaves in (({**CAST, **LORA}, False), ({**CAST, **LORA, **AGAIN}, True), (CAST, True)):
        saved = [
            item for item in sheet("qwen2_5_vl", asked).items if item.component is Component.SAVED_ACTIVATIONS
        ]
        own = sum(
            item.at[Instant.LOSS].value
            for item in saved
            if item.path.startswith("model.visual") and Instant.LOSS in item.at
        )
        assert (own > 0) is leaves


def test_longer_pictures_in_several_micro_batches_have_them_too() -> None:
    found = sheet(
        "qwen2_5_vl",
        {
            **WIDE,
            **AGAIN,
            "seq_len": 960,
            "image_tokens": 900,
            "microbatch": 1,
            "global_batch": 4,
            "optimizer.implementation": "fused",
        },
    )
    for instant, real in (
        (Instant.FORWARD, 136_166_928),
        (Instant.LOSS, 142_544_224),
        (Instant.BACKWARD, 166_005_176),
    ):
        assert found.at(instant).value == pytest.approx(real, rel=CLOSE)


@pytest.mark.parametrize("name", TOWERS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("asked", [CAST, WIDE, {**CAST, **AGAIN}])
def test_more_pictures_are_never_less(name: str, device: str, asked: Request) -> None:
    found = [sheet(name, {**asked, "image_tokens": tokens}, device=device) for tokens in (64, 128, 256, 320)]
    for less, more in pairwise(found):
        for instant in (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD):
            assert less.at(instant).value < more.at(instant).value


@pytest.mark.parametrize("name", TOWERS)
def test_no_picture_is_the_answer_without_the_key(name: str) -> None:
    spec = model(name)
    request = {"engine": "transformers", "attention": "sdpa", "seq_len": 320}
    without, none = (
        account_rank(spec, resolve_request({**request, **more}, spec).plan)
        for more in ({}, {"image_tokens": 0})
    )
    assert without == none
    assert any("no picture" in note for note in none.notes)


@pytest.mark.parametrize("name", TOWERS)
def test_the_tower_trains_with_the_rest(name: str) -> None:
    """Two moments and a gradient for every parameter, known exactly."""
    spec, found = model(name), sheet(name, WIDE)
    for component, size in ((Component.OPTIMIZER_STATES, 8), (Component.GRADIENTS, 4)):
        states = found.of(component, instant=Instant.OPTIMIZER_STEP)
        assert states.value == pytest.approx(size * parameter_count(spec), rel=1e-4)
        assert states.low == states.value == states.high
    assert not any("no picture" in note for note in found.notes)


def test_pictures_come_in_fp32_with_what_says_where_they_are() -> None:
    inputs = sheet("qwen2_5_vl", PURE).of(Component.INPUTS, instant=Instant.LOAD).value
    assert inputs == 2 * 256 * 4 * 1176 * 4 + 3 * 2 * 320 * 8 + 2 * 3 * 8


def test_windows_cost_what_whole_pictures_do_in_kernels_that_keep_no_scores() -> None:
    spec = model("qwen2_5_vl")
    (tower,) = spec.towers
    runs = tuple(
        replace(
            run,
            pattern=tuple(
                replace(b, mixers=tuple(replace(m, chunk=None) for m in b.mixers)) for b in run.pattern
            ),
        )
        for run in tower.stack.runs
    )
    whole = replace(spec, towers=(replace(tower, stack=replace(tower.stack, runs=runs)),))
    plan = resolve_request(
        {"engine": "transformers", "attention": "sdpa", "seq_len": 320, "image_tokens": 256}, spec
    ).plan
    assert account_rank(spec, plan).peak == account_rank(whole, plan).peak


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"image_tokens": 321}, "image_tokens"), ({"attention": "eager"}, "attention"), ({"recompute.mode": "full", "recompute.every": 2}, "recompute.mode"),
        ({"adapter.rank": 8, "adapter.targets": ["q_proj", "gate_proj"]}, "adapter.targets"), ({"loss": "fused"}, "loss"),
        ({"engine": "fsdp2", "mesh.dp_shard": 2}, "image_tokens"), ({"offload.activations": True}, "offload.activations"),
    ],
)  # fmt: skip
def test_what_was_not_compared_beside_pictures_is_refused_by_name(asked: Request, field: str) -> None:
    with pytest.raises(InputError) as caught:
        sheet("qwen2_5_vl", asked, device="cuda")
    assert field in {problem.field for problem in caught.value.problems}


def test_models_whose_pictures_are_not_modelled_are_refused_and_those_without_take_none() -> None:
    llava = read_hf_config({
        "model_type": "llava", "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
    })  # fmt: skip
    with pytest.raises(InputError, match="pictures in a batch are not modelled for llava"):
        account_rank(
            llava,
            resolve_request({"engine": "transformers", "seq_len": 1024, "image_tokens": 576}, llava).plan,
        )
    words = read_hf_config({**TEXT, "model_type": "llama"})
    with pytest.raises(InputError, match="takes none"):
        resolve_request({"engine": "transformers", "seq_len": 1024, "image_tokens": 576}, words)


def test_the_key_reads_back_from_a_plan_that_was_written() -> None:
    spec = model("qwen2_vl")
    plan = resolve_request({"engine": "transformers", "seq_len": 320, "image_tokens": 256}, spec).plan
    assert plan_document(plan, model="qwen2_vl", cluster=None)["image_tokens"] == 256
    assert "image_tokens" not in plan_document(
        replace(plan, workload=replace(plan.training, image_tokens=0)), model="qwen2_vl", cluster=None
    )


def test_a_quantized_base_is_never_dropped_for_pictures() -> None:
    """Pictures are refused beside it, by their own name."""
    with pytest.raises(InputError) as raised:
        memsheet.train("qwen2.5-vl-7b", seq_len=512, image_tokens=256, quantize="nf4", lora_rank=8)
    problem = raised.value.problems[0]
    assert (problem.field, problem.value) == ("image_tokens", 256)
    assert "quantization.weights = nf4" in problem.reason
