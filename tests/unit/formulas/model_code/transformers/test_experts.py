"""Routed experts of the library's grouped product: nothing depends on who goes where, and each family's
router keeps its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from layers_kept import kept, under
from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.formulas.model_code.transformers.routers import ROUTERS, SHARED_LAST
from memsheet.plan.verified_families import VERIFIED
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

TOKENS, HIDDEN, WIDTH = 2 * 64, 512, 128
SMALL: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "pad_token_id": 0,
    "max_position_embeddings": 4096, "intermediate_size": WIDTH, "moe_intermediate_size": WIDTH, "head_dim": 64,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"sliding_window": None},
    "glm4_moe": {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "n_shared_experts": 1},
    "phimoe": {"sliding_window": None},
    "gpt_oss": {},
    "ernie4_5_moe": {"moe_layer_start_index": 0, "moe_num_shared_experts": 1},
}


def of(family: str, *, experts: int = 8, each: int = 2, **more: Any) -> dict[str, int]:
    count = {"num_local_experts": experts, "num_experts_per_tok": each}
    if family == "ernie4_5_moe":
        count = {"moe_num_experts": experts, "moe_k": each}
    config = {"model_type": family, **SMALL, **count, **FAMILIES[family], **more}
    return kept(config, 1, attention="eager" if family == "gpt_oss" else "sdpa")


def test_every_router_was_compared_with_its_real_code() -> None:
    assert set(ROUTERS) <= set(VERIFIED)
    assert set(SHARED_LAST) <= set(ROUTERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_experts_keep_does_not_depend_on_how_many_there_are(family: str) -> None:
    few, many = (under(of(family, experts=count), "mlp.experts") for count in (4, 32))
    assert many - few == 4 * (32 - 4)  # where each expert's rows end, an int32 each


@pytest.mark.parametrize("family", FAMILIES)
def test_what_experts_keep_grows_with_those_that_a_token_goes_to(family: str) -> None:
    one, two = (under(of(family, each=count), "mlp.experts") for count in (1, 2))
    ends = 4 * 8
    assert two - ends == 2 * (one - ends)


def test_experts_keep_copies_of_their_tokens_and_both_products() -> None:
    """bf16: the token for its first matrix; gate and up, activation and their product; what is said; two
    indices and a share a pair.
    """
    pairs = 2 * TOKENS
    inner = 2 * WIDTH + WIDTH + WIDTH
    indices = 8 * 3  # the tokens, the order and its inverse
    assert (
        under(of("glm4_moe"), "mlp.experts") == pairs * (2 * (HIDDEN + inner + HIDDEN) + 4 + indices) + 4 * 8
    )


def test_a_clamped_gate_keeps_what_it_compares() -> None:
    """gpt_oss: the joint product, the gate clamped, its sigmoid, both factors of the last product, and that
    product.
    """
    pairs = 2 * TOKENS
    inner = 2 * WIDTH + 5 * WIDTH
    indices = 8 * 4  # besides, each row's expert, whose bias was added
    assert (
        under(of("gpt_oss"), "mlp.experts") == pairs * (2 * (HIDDEN + inner + HIDDEN) + 2 + indices) + 4 * 8
    )


def test_a_router_that_asks_for_fp32_keeps_its_tokens_in_it() -> None:
    held = of("glm4_moe")
    assert held["mlp.gate/fp32"] == 4 * TOKENS * HIDDEN
    assert "mlp.gate/fp32" not in of("mixtral")


def test_a_loss_of_the_routers_own_is_refused() -> None:
    config = {"model_type": "mixtral", **SMALL, "num_local_experts": 8, "output_router_logits": True}
    model = read_hf_config(config)
    with pytest.raises(InputError, match="output_router_logits"):
        account_rank(model, resolve_request({"engine": "transformers", "seq_len": 64}, model).plan)
