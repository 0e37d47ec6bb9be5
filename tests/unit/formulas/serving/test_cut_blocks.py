"""Block-quantized weights under tensor parallelism: what is cut inside a block is refused where the server is
known to refuse it, and said else.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.sheet import Component

BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}
QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "quantization_config": BLOCKS,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
    "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": BLOCKS,
}  # fmt: skip
NAMES = {"qwen": QWEN, "llama": LLAMA}
INNER = {"qwen": 1536, "llama": 5632}
SOURCES = (("vllm", "0.11.0"), ("vllm", "0.25.0"), ("vllm", None), ("sglang", None))


def served(name: str, tp: int, engine: str, version: str | None = None, **more: Any) -> memsheet.Answer:
    return memsheet.infer(
        NAMES[name],
        gpus=f"{tp}xH100-80GB",
        engine=engine,
        engine_version=version,
        max_model_len=2048,
        fix=False,
        **more,
    )


@pytest.mark.parametrize(("engine", "version"), SOURCES)
@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_is_cut_inside_a_block_is_refused_or_said(name: str, engine: str, version: str | None) -> None:
    refused = dict[int, bool]()
    for tp in (1, 2, 4, 8, 16):
        whole = INNER[name] // tp % 128 == 0
        try:
            answer = served(name, tp, engine, version)
        except InputError as error:
            problem = error.problems[0]
            fewer = int(problem.hint.split("--tp ")[1].split(",")[0])
            whole = whole or problem.field != "mesh.tp" or not served(name, fewer, engine, version).sheets
            refused[tp] = not whole
            continue
        said = any("share a scale" in note for sheet in answer.sheets for note in sheet.notes)
        assert said is not whole
        assert whole or (engine, version) == ("vllm", None)
    assert all(refused.values())


@pytest.mark.parametrize(("engine", "version"), SOURCES)
def test_experts_that_are_whole_on_their_ranks_are_cut_nowhere(engine: str, version: str | None) -> None:
    notes = served("qwen", 8, engine, version, ep=8).sheets[0].notes
    assert not any("share a scale" in note for note in notes)


def test_finer_blocks_take_more_scales_and_padding_more_weights() -> None:
    """1,536 over 8 ranks is 192: blocks of 64 have four times the scales of the checkpoint's, and 256
    elements a third more weights.
    """
    found = served("qwen", 8, "vllm").sheets[0]
    experts = next(
        item
        for item in found.items
        if item.component is Component.PARAMETERS and item.path.endswith("experts")
    ).largest
    elements = 4 * 128 * 3 * 192 * 4096
    assert experts.value == elements + 4 * elements // 64**2
    padded = elements // 192 * 256
    assert experts.high == padded + 4 * padded // 128**2


def test_every_cut_of_a_deployment_is_asked_the_same() -> None:
    found = memsheet.plan_serving(QWEN, gpus="8xH100-80GB", engine="sglang", context=2048, users=4)
    assert found.refused
    assert all(one.plan.mesh.ep > 1 or 1536 // one.plan.mesh.tp % 128 == 0 for one in found.plans)


def test_a_weight_that_has_no_block_of_its_own_stops_no_server() -> None:
    """Four ranks were told not to load a release whose smallest projection has 64 rows, which they do."""
    found = memsheet.infer(
        "Qwen/Qwen3.5-397B-A17B-FP8", gpus="4xB200", engine="sglang", tp=4, max_model_len=8192, fix=False
    )
    assert found.verdict is not None
    with pytest.raises(InputError, match="experts' inner size"):
        memsheet.infer("Qwen/Qwen3-235B-A22B-FP8", gpus="8xH200", engine="sglang", tp=8, max_model_len=8192)
