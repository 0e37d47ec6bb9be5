"""Peaks of real code, traced once: transformers 5.23, torch 2.13, fake CUDA tensors, two steps, the second
one's high-water marks.

The model is a Llama with 6 layers, hidden 1024, feed-forward 2816, 16 heads, 4 key/value heads, vocabulary
8000 (64000 where said). Labels were the input ids themselves, so our separate labels (8 bytes a token) are
taken off. Kernels that have a CUDA implementation were registered as one operation; gradients accumulate out
of place under a trace, which may add one hidden-sized tensor.
"""

from __future__ import annotations

import pytest

from memsheet.account import account_rank
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Instant

LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 8000, "max_position_embeddings": 8192,
}  # fmt: skip
FSDP2 = {"engine": "fsdp2", "mesh.dp_shard": 8, "zero": 3}
FULL = {"recompute.mode": "full"}
PURE = {"precision.name": "bf16-pure"}
SINGLE = {"engine": "transformers", "attention": "sdpa"}
EAGER = {"engine": "transformers", "attention": "eager"}

# request, config changes, seq_len, forward (with loss), backward, optimizer step
CASES = {
    "single pure": (SINGLE | PURE, {}, 1024, 865_749_636, 882_125_436, 672_252_392),
    "single pure foreach": (
        SINGLE | PURE | {"optimizer.implementation": "foreach"},
        {},
        1024,
        865_749_408,
        882_125_208,
        840_313_092,
    ),
    "single pure recompute": (SINGLE | PURE | FULL, {}, 1024, 607_365_620, 700_248_580, 672_252_392),
    "single autocast": (SINGLE, {}, 1024, 1_591_050_884, 1_603_232_380, 1_344_496_104),
    "single autocast recompute": (SINGLE | FULL, {}, 1024, 1_282_335_220, 1_366_852_100, 1_344_496_104),
    "eager pure": (EAGER | PURE, {}, 1024, 1_488_210_420, 1_504_586_220, 672_252_392),
    "eager autocast": (EAGER, {}, 1024, 2_213_511_668, 2_225_693_164, 1_344_496_104),
    "fsdp2": (FSDP2, {}, 1024, 520_384_644, 520_374_396, 168_069_608),
    "fsdp2 recompute": (FSDP2 | FULL, {}, 1024, 262_000_628, 311_919_108, 168_069_608),
    "fsdp2 recompute short foreach": (
        FSDP2 | FULL | {"optimizer.implementation": "foreach"},
        {},
        128,
        195_299_072,
        269_400_328,
        210_077_444,
    ),
    "fsdp2 pure recompute": (FSDP2 | FULL | PURE, {}, 1024, 198_977_780, 213_025_284, 84_039_144),
    "fsdp2 tied": (FSDP2, {"tie_word_embeddings": True}, 1024, 514_259_072, 508_086_392, 151_685_604),
    "fsdp2 tied recompute": (
        FSDP2 | FULL,
        {"tie_word_embeddings": True},
        1024,
        255_875_056,
        328_306_688,
        151_685_604,
    ),
    "fsdp2 kept gathered": (FSDP2 | {"zero": 2} | FULL, {}, 1024, 413_675_508, 413_665_260, 168_069_608),
    "fsdp2 accumulating": (
        FSDP2 | FULL | {"global_batch": 16},
        {},
        1024,
        304_015_864,
        333_580_804,
        168_069_608,
    ),
    "fsdp2 wide vocabulary": (
        FSDP2 | FULL,
        {"vocab_size": 64000},
        1024,
        1_236_848_628,
        1_236_838_380,
        397_445_608,
    ),
    "fsdp2 two ranks": (FSDP2 | FULL | {"mesh.dp_shard": 2}, {}, 1024, 640_137_716, 784_278_020, 672_252_392),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_has_the_traced_high_water_marks(name: str) -> None:
    request, changes, seq_len, forward, backward, step = CASES[name]
    spec = read_hf_config({**LLAMA, "tie_word_embeddings": False, **changes})
    sheet = account_rank(
        spec, resolve_request({"optimizer.implementation": "fused", **request, "seq_len": seq_len}, spec).plan
    )
    labels = 8 * seq_len
    ours = {
        "forward": max(sheet.at(Instant.FORWARD).value, sheet.at(Instant.LOSS).value), "backward": sheet.at(Instant.BACKWARD).value,
        "step": sheet.at(Instant.OPTIMIZER_STEP).value,
    }  # fmt: skip
    for instant, traced in (("forward", forward), ("backward", backward), ("step", step)):
        assert ours[instant] - labels == pytest.approx(traced, rel=1e-4), instant
