"""llama.cpp's buffers worked out by hand, at sizes where a neighbouring constant gives another number."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import infer
from memsheet.engines.llama_cpp.ggml import Buffer
from memsheet.sheet import Bytes, Component, Instant

LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
WINDOWED = {
    "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "max_position_embeddings": 32768,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"], "tie_word_embeddings": True,
}  # fmt: skip
A_CELL = 32 * 2 * 8 * 128 * 2
"""32 layers' keys and values, eight heads of 128 in fp16."""


def served(config: dict[str, Any], component: Component, **options: Any) -> Bytes:
    answer = infer(config, **{"engine": "llama.cpp", "max_model_len": 4096, "attention": "flash", **options})
    return answer.sheets[0].of(component, instant=Instant.DECODE)


@pytest.mark.parametrize(
    ("version", "attention", "cells"),
    [
        (None, "flash", 1280),
        (None, "eager", 1280),
        ("ik_llama.cpp", "flash", 1280),
        ("ik_llama.cpp", "eager", 1056),
    ],
)
def test_cells_of_a_context_of_1030(version: str | None, attention: str, cells: int) -> None:
    """To a multiple of 256: 5 * 256 = 1280; the fork's without flash attention of 32: 33 * 32 = 1056, where
    64 would give 1088.
    """
    found = served(LLAMA, Component.KV_CACHE, max_model_len=1030, attention=attention, engine_version=version)
    assert found == Bytes.exact(cells * A_CELL)


def test_cells_of_a_window() -> None:
    """A window of 512 and a batch of 100 in five layers: 612, to 768; the sixth keeps 4096 cells. A cell:
    keys and values of 256 in fp16.
    """
    found = served(WINDOWED, Component.KV_CACHE, max_batched_tokens=100)
    assert found == Bytes.exact((5 * 768 + 4096) * 2 * 256 * 2)


def test_what_products_allocate() -> None:
    """512 rows of the widest side, 14,336, 144 bytes of 128 quantized activations: 8,257,536; at most the
    widest matrix and both operands in fp16: 2 * (14,336 * 4096 + 2 * 512 * 14,336).
    """
    answer = infer(LLAMA, engine="llama.cpp", max_model_len=4096, attention="flash", quantize="gguf:Q8_0")
    pool = next(item for item in answer.sheets[0].items if item.path == "cuda_pool")
    assert pool.at[Instant.DECODE] == Bytes(0, 8_257_536, 2 * (14_336 * 4096 + 2 * 512 * 14_336))


@pytest.mark.parametrize(("before", "after"), [("b7342", "b7343"), ("b9992", "b9993")])
def test_builds_that_changed_their_buffers(before: str, after: str) -> None:
    """Masks were fp32 and cast until b7342; the server asks for one position's logits a sequence from
    b9993.
    """
    one, other = (
        served(LLAMA, Component.TEMPORARIES, engine_version=version, max_model_len=65536).value
        for version in (before, after)
    )
    assert one > other


def test_tensors_lie_on_multiples_of_128() -> None:
    buffer = Buffer()
    assert [buffer.place(size) for size in (1, 128, 129, 1)] == [0, 128, 256, 512]
    assert buffer.size == 640
