"""Falcon, Bloom and MPT with dropout against their real code, traced once (transformers 5.23, torch 2.13,
fake CUDA tensors), and what is refused of them. Without dropout they are among ``traced_families.json``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Instant, Sheet

CONFIGS: dict[str, Any] = json.loads(
    Path(__file__).with_name("traced_families.json").read_text(encoding="utf-8")
)["configs"]
CLOSE = 2e-4


def sheet(name: str, *, changed: dict[str, Any] | None = None, **asked: Any) -> Sheet:
    model = read_hf_config({**CONFIGS[name], **(changed or {})})
    request = {
        "engine": "transformers",
        "seq_len": 512,
        "microbatch": 2,
        "optimizer.implementation": "fused",
        "attention": "eager",
        **asked,
    }
    return account_rank(model, resolve_request(request, model).plan)


TRACED: list[tuple[str, str, str, str, int, int]] = [
    ("falcon", "eager", "bf16-autocast", "none", 395_612_612, 401_691_060), ("falcon-new", "sdpa", "bf16-pure", "full", 126_093_732, 134_269_332),
    ("falcon-new", "eager", "fp32", "none", 389_173_732, 405_541_332), ("bloom", "eager", "bf16-autocast", "none", 450_760_940, 456_802_524),
    ("bloom", "eager", "bf16-pure", "full", 160_350_452, 183_904_476),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attention", "precision", "recompute", "forward", "backward"), TRACED)
def test_dropout_has_the_traced_high_water_marks(
    name: str, attention: str, precision: str, recompute: str, forward: int, backward: int
) -> None:
    found = sheet(
        name, dropout=0.1, attention=attention, **{"precision.name": precision, "recompute.mode": recompute}
    )
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        forward, rel=CLOSE
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=CLOSE)


ONE_HEAD: list[tuple[str, str, int, int]] = [
    ("bf16-autocast", "none", 372_543_940, 378_622_388), ("fp16-autocast", "full", 212_869_516, 266_838_412),
    ("fp32", "none", 375_460_292, 391_827_892),
]  # fmt: skip
"""Without the 64 MiB that a card's matrix products work in."""


@pytest.mark.parametrize(("precision", "recompute", "forward", "backward"), ONE_HEAD)
def test_one_head_of_keys_under_a_mask_runs_in_plain_operations(
    precision: str, recompute: str, forward: int, backward: int
) -> None:
    found = sheet("falcon", attention="sdpa", **{"precision.name": precision, "recompute.mode": recompute})
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        forward, rel=CLOSE
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=CLOSE)


def test_branches_that_follow_one_another_are_refused() -> None:
    with pytest.raises(InputError, match="follow one another"):
        sheet("falcon", changed={"parallel_attn": False})


def test_dropout_that_no_config_takes_is_refused() -> None:
    with pytest.raises(InputError, match="whole number"):
        sheet("mpt", dropout=0.1)


def test_falcon_drops_no_probabilities() -> None:
    kept = [
        sheet("falcon-new", dropout=rate, **{"precision.name": "bf16-pure"}).at(Instant.LOSS).value
        for rate in (0.0, 0.1)
    ]
    layers, hidden = CONFIGS["falcon-new"]["num_hidden_layers"], CONFIGS["falcon-new"]["hidden_size"]
    assert (
        kept[1] - kept[0] == layers * 2 * 512 * hidden
    )  # a mask of one byte an element of what each block adds
