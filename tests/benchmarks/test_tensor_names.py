"""What diagnose names of tensors whose truth is known: a sample of benchmarks/tensor_names.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tensor_names import judged_cases, outcome_of
from tensor_truths import FRAMES, Truth

from memsheet.diagnose.message import Term

SAMPLE = ("qwen3-30b-a3b", "llama-3.1-8b", "gpt2-xl")


def test_tensors_that_a_text_tells_are_named_and_none_is_certainly_another() -> None:
    found = list(judged_cases("mending", 1, SAMPLE))
    told = [each for each in found if each.told]
    right = [each for each in told if each.outcome in ("exact", "among")]
    assert len(told) >= 20
    assert len(right) >= 0.95 * len(told)
    assert [each.truth for each in found if each.outcome == "wrong as certain"] == []


def test_a_name_is_right_where_size_kind_and_module_are() -> None:
    truth = Truth(
        "transformers",
        "llama-3.1-8b",
        "weight",
        "mlp.up_proj",
        (14336, 4096),
        "bfloat16",
        FRAMES["load"],
        {},
        (),
    )
    right = Term(
        component="parameters", path="model", shape="[14336, 4096] bf16", exact=True, words="mlp.up_proj"
    )
    made = Term(
        component="saved_activations",
        path="model",
        shape="[4096, 14336] bf16",
        exact=True,
        words="mlp.up_proj",
    )
    assert outcome_of(truth, right) == "exact"
    assert outcome_of(truth, Term(**{**_fields(made), "others": (right,), "exact": False})) == "among"
    assert outcome_of(truth, made) == "wrong as certain"
    assert outcome_of(truth, Term(**{**_fields(right), "words": "self_attn.q_proj"})) == "wrong as certain"
    assert outcome_of(truth, None) == "unnamed"


def _fields(term: Term) -> dict[str, object]:
    return {name: getattr(term, name) for name in ("component", "path", "shape", "exact", "words")}
