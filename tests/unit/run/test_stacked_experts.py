"""Experts that are one parameter a layer in four bits, as axolotl has bitsandbytes store them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.questions.traced import Options, trace_with_timelines
from memsheet.sheet import Component, Instant, Sheet

pytestmark = pytest.mark.usefixtures("warm_children")

pytest.importorskip("torch")

TINY: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_experts": 16, "num_experts_per_tok": 2,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False, "head_dim": 64,
}  # fmt: skip
MIXTRAL = {
    **{key: size for key, size in TINY.items() if key != "num_experts"},
    "model_type": "mixtral",
    "num_local_experts": 8,
}
ASKED: dict[str, Any] = {
    "engine": "transformers", "gpus": "1xH100-80GB", "seq_len": 256, "precision.name": "bf16-pure", "adapter.rank": 8,
    "adapter.targets": ["q_proj", "v_proj"], "quantization.weights": "nf4",
}  # fmt: skip
EXPERTS = {"quantization.experts": True}


def sheet(config: dict[str, Any] | str = TINY, **asked: Any) -> Sheet:
    return memsheet.train(config, plan={**ASKED, **asked}, fix=False).sheets[0]


@pytest.mark.parametrize(
    ("config", "asked"),
    [(TINY, {}), (TINY, {"recompute.mode": "full"}), (MIXTRAL, {"recompute.mode": "full", "microbatch": 2})],
    ids=["kept", "recomputed", "mixtral"],
)
def test_every_instant_is_that_of_the_real_step(config: dict[str, Any], asked: dict[str, Any]) -> None:
    plan = {**ASKED, **EXPERTS, **asked}
    answer, _ = trace_with_timelines(config, Options(scratch=False), plan=plan)
    traced, predicted = answer.sheets[0], sheet(config, **EXPERTS, **asked)
    for instant in traced.instants:
        assert predicted.at(instant).value == pytest.approx(
            traced.at(instant).value, abs=1e-3 * traced.peak.value
        ), instant


def test_they_are_stored_in_four_bits_and_made_whole_a_layer_at_a_time() -> None:
    """The bytes of NF4 with scales in eight bits; under recompute one layer's matrices at most."""
    elements, layers = 16 * 3 * 128 * 256, 3
    plain, small = (sheet(**more, **{"recompute.mode": "full"}) for more in ({}, EXPERTS))
    held = [one.of(Component.PARAMETERS, instant=Instant.LOAD).value for one in (plain, small)]
    assert held[0] - held[1] == pytest.approx(
        layers * elements * (2 - (0.5 + 1 / 64 + 4 / 64 / 256)), rel=0.001
    )
    assert [_made_whole(one) for one in (plain, small)] == [0, 2 * elements]


def _made_whole(held: Sheet) -> int:
    """Bytes of dequantized matrices at the most that forward holds."""
    at = [item.at.get(Instant.FORWARD) for item in held.items if item.path.endswith("experts/dequantized")]
    return sum(size.value for size in at if size is not None)


def test_without_recompute_every_layers_matrices_are_kept() -> None:
    assert _made_whole(sheet(**EXPERTS)) > 2 * 2 * 16 * 3 * 128 * 256


def test_where_no_layer_has_experts_none_are_quantized() -> None:
    """A tool that quantizes them wherever there are any does nothing else."""
    asked = {"gpus": "1xH100-80GB", "seq_len": 512, "lora_rank": 8, "quantize": "nf4"}
    with_experts, plain = (
        memsheet.train("llama-3.2-1b", **asked, fix=False, **more)
        for more in ({"plan": {"quantization": {"experts": True}}}, {})
    )
    assert with_experts.plan == plain.plan


@pytest.mark.parametrize(
    ("config", "asked", "words"),
    [
        (TINY, {"quantization.weights": "int8"}, "not modelled of int8"),
        (TINY, {"engine": "fsdp2", "gpus": "2xH100-80GB", "precision.name": None}, "divides them"),
        (TINY, {"quantization.weights": None}, "quantization"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_of_them_is_refused(config: Any, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sheet(config, **EXPERTS, **asked)


AXOLOTL = """base_model: Qwen/Qwen3-30B-A3B
adapter: qlora
load_in_4bit: true
quantize_moe_experts: true
lora_r: 16
lora_target_modules: [q_proj, v_proj]
sequence_len: 2048
micro_batch_size: 1
gradient_checkpointing: true
sample_packing: true
bf16: true
optimizer: adamw_torch_4bit
"""


def test_axolotl_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yml").write_text(AXOLOTL)
    main(["check", str(tmp_path / "a.yml"), "--gpus", "1xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["doubt"], found["result"]) == (None, "fits")
    assert found["sheet"]["plan"]["quantization"]["experts"] is True


def test_what_goes_with_a_format_that_is_left_out_goes_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = AXOLOTL.replace("qlora", "lora").replace("4bit: true", "8bit: true", 1)
    fsdp = "fsdp_version: 2\nfsdp_config: {transformer_layer_cls_to_wrap: Qwen3MoeDecoderLayer}\n"
    (tmp_path / "a.yml").write_text(text + fsdp)
    main(["check", str(tmp_path / "a.yml"), "--gpus", "8xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found.get("sheet"), found["why_not"]
    assert "quantization.weights = int8" in found["doubt"]
