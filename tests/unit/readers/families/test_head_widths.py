"""``head_dim`` in a config: honoured by the families whose code reads it, ignored by the others, at every
level of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from test_counts_dense import FAMILIES, odd
from test_counts_multimodal import CHEAP as NESTED
from test_counts_sparse import CHEAP as SPARSE
from test_counts_sparse import FULL as MORE_SPARSE

from memsheet.readers.hf_config import read_hf_config
from oracle import meta_tensors, our_tensors

WIDTH = 26
READS_IT = ("phi", "vit", "t5")
"""Families of which a width of heads was once taken for the hidden size over the heads."""


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every family with a width of heads of its own, at the top of its file and in each part."""
    sparse = {kind: config for kind, config in (*MORE_SPARSE, *SPARSE) if len(config) > 3}
    yield from (("AutoModelForCausalLM", {**odd(kind), "head_dim": WIDTH}) for kind in FAMILIES)
    yield from (
        ("AutoModelForCausalLM", {"model_type": kind, "pad_token_id": 0, **sizes, "head_dim": WIDTH})
        for kind, sizes in sparse.items()
    )
    for auto, config in NESTED:
        yield auto, {**config, "head_dim": WIDTH}
        parts = [key for key, value in config.items() if key.endswith("_config") and isinstance(value, dict)]
        yield from ((auto, {**config, part: {**config[part], "head_dim": WIDTH}}) for part in parts)


CASES = list(cases())


def check_widths(auto: str, config: dict[str, Any]) -> None:
    """Every parameter of the real model, by name; what transformers itself does not build has no answer."""
    try:
        real = meta_tensors(config, auto)
    except (AttributeError, TypeError, ValueError, StrictDataclassError) as error:
        pytest.skip(f"transformers: {error!r:.80}")
    assert our_tensors(read_hf_config(config)) == real


def label(case: tuple[str, dict[str, Any]]) -> str:
    parts = [
        key for key, value in case[1].items() if isinstance(value, dict) and value.get("head_dim") == WIDTH
    ]
    return "-".join([case[1]["model_type"], *parts])


@pytest.mark.parametrize("case", [case for case in CASES if case[1]["model_type"] in READS_IT], ids=label)
def test_heads_of_a_width_of_their_own(case: tuple[str, dict[str, Any]]) -> None:
    check_widths(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case[1]["model_type"] not in READS_IT], ids=label)
def test_heads_of_a_width_of_their_own_everywhere(case: tuple[str, dict[str, Any]]) -> None:
    check_widths(*case)


def test_a_small_phi_has_what_transformers_has() -> None:
    config = {
        "model_type": "phi", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
        "head_dim": 24, "tie_word_embeddings": False,
    }  # fmt: skip
    assert sum(our_tensors(read_hf_config(config)).values()) == sum(meta_tensors(config).values())
