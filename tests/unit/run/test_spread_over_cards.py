"""The map that transformers makes of a model over several cards, against the one that is accounted; and what
its hooks leave on each card, against the sheet.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.accelerate import get_balanced_memory, infer_auto_device_map

import memsheet
from laws import every
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import Config, find_config
from memsheet.sheet import Instant

pytestmark = pytest.mark.usefixtures("warm_children")

ROOM = 10**13
"""More bytes than any card has."""
LAYERS = "model.layers."


class FourBits:
    """What the library's quantizer says of sizes, without its package: half a byte for a linear layer's
    matrix but the head's (quantizers/quantizer_bnb_4bit.py, quantized_element_size).
    """

    def param_element_size(self, model: Any, name: str, parameter: torch.Tensor) -> float:
        module = model.get_submodule(name.rpartition(".")[0])
        quantized = isinstance(module, torch.nn.Linear) and module is not model.lm_head
        return 0.5 if quantized else parameter.element_size()


def cards_of_library(name: str, cards: int, *, four_bits: bool, dtype: torch.dtype) -> dict[str, int]:
    config = find_config(name, catalog=catalog_entry)
    assert isinstance(config, Config)
    given = {key: value for key, value in config.values.items() if key not in ("model_type", "dtype")}
    settings = AutoConfig.for_model(config.values["model_type"], **given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype)
    how: Any = {
        "no_split_module_classes": model._no_split_modules,
        "hf_quantizer": FourBits() if four_bits else None,
    }
    room = get_balanced_memory(model, max_memory=dict.fromkeys(range(cards), ROOM), **how)
    share = {card: size * (0.9 if four_bits else 1) for card, size in room.items()}
    found: dict[str, int] = infer_auto_device_map(model, max_memory=share, **how)
    return found


def card_of(found: dict[str, int], module: str) -> int | None:
    """The card of a module, by the longest name in the map that it lies in."""
    names = [name for name in found if module.startswith(f"{name}." if name else "") or module == name]
    return found[max(names, key=len)] if names else None


@every("four_bits", [False, True])
@every("cards", [2, 3, 8])
@every("name", ["llama-3.1-8b", "llama-3.2-1b", "qwen2.5-0.5b", "mistral-7b", "qwen3-30b-a3b"])
def test_layers_are_dealt_as_the_library_deals_them(name: str, cards: int, four_bits: bool) -> None:
    found = cards_of_library(name, cards, four_bits=four_bits, dtype=torch.bfloat16)
    more: dict[str, Any] = {"quantize": "nf4", "lora_rank": 8} if four_bits else {}
    answer = memsheet.train(
        name, gpus=f"{cards}xH100-80GB", schedule="naive", seq_len=128, precision="bf16-pure", **more
    )
    layers = answer.model.layers
    each = [card_of(found, f"{LAYERS}{number}") for number in range(layers)]
    assert answer.plan.layers_per_stage == tuple(each.count(card) for card in range(cards))
    ends = card_of(found, "model.embed_tokens"), card_of(found, "lm_head")
    assert (answer.plan.end_stages or (0, cards - 1)) == ends


JOBS: list[dict[str, Any]] = [
    {},
    {"recompute": "full", "lora_rank": 8},
    {
        "global_batch": 2,
        "precision": "bf16-pure",
        "quantize": "nf4",
        "lora_rank": 8,
        "layers_per_stage": [3, 1],
    },
]


@pytest.mark.parametrize("job", JOBS)
def test_each_card_holds_what_its_hooks_leave_there(job: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"gpus": "2xRTX4090", "schedule": "naive", "seq_len": 256, **job}
    accounted = memsheet.train("llama-tiny", **asked)
    for sheet in accounted.sheets:
        (traced,) = memsheet.trace("llama-tiny", rank=sheet.rank, **asked).sheets
        assert traced.allocated.value == pytest.approx(sheet.allocated.value, rel=0.002)
        for instant in (Instant.LOAD, Instant.OPTIMIZER_STEP):
            assert traced.at(instant).value == pytest.approx(sheet.at(instant).value, rel=0.002)


def test_a_tied_head_is_where_its_table_is() -> None:
    config = find_config("llama-tiny", catalog=catalog_entry)
    assert isinstance(config, Config)
    tied = {**config.values, "tie_word_embeddings": True}
    asked: dict[str, Any] = {"gpus": "2xRTX4090", "schedule": "naive", "seq_len": 256}
    accounted = memsheet.train(tied, **asked)
    assert accounted.plan.end_stages == (0, 0)
    for sheet, near in zip(accounted.sheets, (0.0005, 0.01), strict=True):
        (traced,) = memsheet.trace(tied, rank=sheet.rank, **asked).sheets
        # the last card's norm is not accounted, which is beside nothing but where a layer is as small
        assert traced.allocated.value == pytest.approx(sheet.allocated.value, rel=near)
