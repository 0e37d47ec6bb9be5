"""llm-foundry's MPT: parameters as it counts them, what a block saves, what Composer keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.engines.llm_foundry import facts
from memsheet.errors import InputError
from memsheet.formulas.model_code import model_code
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

H, F, HEADS, VOCAB, LAYERS, LENGTH = 1024, 4096, 16, 5000, 4, 512
CONFIG = {
    "model_type": "mpt", "vocab_size": VOCAB, "d_model": H, "n_layers": LAYERS, "n_heads": HEADS, "expansion_ratio": 4,
    "max_seq_len": LENGTH, "no_bias": False, "learned_pos_emb": True, "attn_config": {"alibi": False},
}  # fmt: skip


def sheet(over: dict[str, Any] | None = None, **asked: Any) -> Sheet:
    spec = read_hf_config({**CONFIG, **(over or {})}, name="tiny")
    request = {
        "engine": "llm-foundry", "task": "train", "mesh.dp_shard": 8, "microbatch": 2, "seq_len": LENGTH, "attention": "flash",
        "loss": "fused", **asked,
    }  # fmt: skip
    return account_rank(spec, resolve_request(request, spec).plan)


def test_parameters_have_biases_and_positions() -> None:
    spec = read_hf_config(CONFIG, name="tiny")
    plan = resolve_request(
        {
            "engine": "llm-foundry",
            "task": "train",
            "mesh.dp_shard": 8,
            "seq_len": LENGTH,
            "attention": "flash",
        },
        spec,
    ).plan
    block = (3 * H * H + 3 * H) + (H * H + H) + (F * H + F) + (H * F + H) + 2 * 2 * H
    assert (
        parameter_count(model_code("llm_foundry").built(spec, plan))
        == LAYERS * block + VOCAB * H + LENGTH * H + 2 * H
    )


def test_what_a_block_saves() -> None:
    """Two norms' inputs, results and statistics; queries, keys, values and attention's result picked out, and
    put back; gelu's two sides.
    """
    saved = sheet().of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD).value
    tokens = 2 * LENGTH
    block = tokens * (2 * (2 * H + 2 * H + 3 * H + 2 * H + 2 * F) + 4 * (4 + HEADS))
    assert saved == pytest.approx(LAYERS * block, rel=0.02)


# what one of 8 ranks holds at most in forward and in backward: MPTBlock of its own code under
# FullyShardedDataParallel, each table and the
# final norm a unit of its own, BACKWARD_POST, fused AdamW; flash-attn's kernels stood in for by functions
# that keep what they keep
TRACED = [
    ({"vocab_size": 8000}, {}, 284_976_252, 354_206_324),
    ({"vocab_size": 50_000}, {"recompute.mode": "full"}, 472_990_780, 716_238_916),
    (
        {"vocab_size": 50_000, "n_layers": 1, "max_seq_len": 8},
        {"microbatch": 1, "seq_len": 8},
        212_021_992,
        538_013_088,
    ),
    ({"vocab_size": 500, "max_seq_len": 8}, {"microbatch": 1, "seq_len": 8}, 105_564_460, 198_377_748),
]


@pytest.mark.parametrize(("over", "asked", "forward", "backward"), TRACED)
def test_a_step_is_that_of_its_own_code(
    over: dict[str, Any], asked: dict[str, Any], forward: int, backward: int
) -> None:
    found = sheet(over, **asked, **{"optimizer.implementation": "fused"})
    assert max(found.at(instant).value for instant in (Instant.FORWARD, Instant.LOSS)) == pytest.approx(
        forward, rel=1e-4
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=5e-4)


def test_the_fused_loss_has_no_logits_in_fp32() -> None:
    logits = 2 * LENGTH * 50_000
    fused, plain = (
        sheet({"vocab_size": 50_000}, loss=loss).at(Instant.LOSS).value for loss in ("fused", "plain")
    )
    assert plain - fused >= 2 * 4 * logits * 0.99


def test_composer_keeps_what_the_model_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits stay while layers run backward."""
    asked = {"recompute.mode": "full", "microbatch": 16}
    kept = sheet({"vocab_size": 512}, **asked).at(Instant.BACKWARD).value
    wrapping = replace(facts.ENGINE.flat_wrapping, keeps_outputs=False)
    monkeypatch.setattr(facts, "ENGINE", replace(facts.ENGINE, flat_wrapping=wrapping))
    assert kept - sheet({"vocab_size": 512}, **asked).at(Instant.BACKWARD).value == 2 * 16 * LENGTH * 512


def test_recompute_keeps_a_block_s_input_alone() -> None:
    saved = sheet(**{"recompute.mode": "full"}).of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS).value
    none = sheet(**{"recompute.mode": "none"}).of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS).value
    assert none - saved > LAYERS * 2 * LENGTH * 2 * (12 * H)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"attention": "eager"}, "attention"),
        ({"dropout": 0.1}, "dropout"),
        ({"zero": 2}, "zero"),
        ({"mesh.tp": 2}, "mesh.tp"),
    ],
)
def test_refusals_name_the_field(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        sheet(**asked)
    assert field in {problem.field for problem in caught.value.problems}


def test_an_untied_head_is_refused() -> None:
    spec = read_hf_config({**CONFIG, "tie_word_embeddings": False}, name="tiny")
    plan = resolve_request(
        {
            "engine": "llm-foundry",
            "task": "train",
            "mesh.dp_shard": 8,
            "seq_len": LENGTH,
            "attention": "flash",
        },
        spec,
    ).plan
    with pytest.raises(InputError):
        account_rank(spec, plan)


def test_other_models_are_refused() -> None:
    spec = read_hf_config(
        {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        name="llama",
    )
    plan = resolve_request(
        {"engine": "llm-foundry", "task": "train", "mesh.dp_shard": 8, "seq_len": 64, "attention": "flash"},
        spec,
    ).plan
    with pytest.raises(InputError):
        account_rank(replace(spec, head=replace(spec.head, tied=True)), plan)
