"""SGLang's share of memory beside an encoder of pictures, where nobody says a share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memsheet import catalog
from memsheet.engines.sglang.vision_share import (
    COUNTED_AS_DEPTH,
    LEAST,
    MOST,
    USUAL_SHARE,
    encoder_of_pictures,
    vision_share,
)
from memsheet.errors import InputError
from memsheet.plan.model import ModelSpec
from memsheet.questions.accounted import infer
from memsheet.readers.model import read_model

H100 = "1xH100-80GB"


def spec_of(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def share_of(name: str, **options: object) -> float:
    answer = infer(name, gpus=H100, engine="sglang", **{"max_model_len": 8192, **options})
    return float(answer.plan.cache.memory_fraction or 0.0)


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [
        ("llava-1.5-7b", 24, 1024),
        ("gemma-4-31b", 27, 1152),
        ("kimi-k2.5", 27, 1152),
        ("intern-s1", 45, 3200),
        ("qwen2.5-vl-7b", 24, 1280),  # 32 deep, which nobody looks for
        ("qwen3-vl-8b", 24, 1152),  # 27 deep
        ("qwen2-vl-7b", 24, 3584),  # the decoder's width
        ("gemma-4-12b", 24, 1024),  # a vision_config that says neither
    ],
)
def test_the_share_goes_by_what_the_vision_config_calls_layers_and_width(
    name: str, layers: int, width: int
) -> None:
    by_weights = 1.1 - 0.1 * layers * width**2 / (24 * 1024**2)
    assert vision_share(spec_of(name)) == pytest.approx(0.95 * min(1.05, max(0.8, by_weights)))


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen2.5-omni-7b", "qwen3-omni-30b-a3b", "gemma-3-4b", "llama-4-scout"]
)
def test_no_vision_config_that_is_heeded_leaves_the_share_alone(name: str) -> None:
    assert vision_share(spec_of(name)) == 1.0


def test_a_larger_encoder_never_leaves_more() -> None:
    model = spec_of("llava-1.5-7b")
    tower = encoder_of_pictures(model)
    assert tower is not None
    assert model.model_type not in COUNTED_AS_DEPTH
    (run,) = tower.stack.runs
    shares = [
        vision_share(
            replace(
                model, towers=(replace(tower, stack=replace(tower.stack, runs=(replace(run, count=n),))),)
            )
        )
        for n in range(1, 200, 7)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(USUAL_SHARE * MOST)
    assert shares[-1] == pytest.approx(USUAL_SHARE * LEAST)


def test_the_text_model_alone_is_given_more_than_the_model_that_sees() -> None:
    before_chunks = "0.5.9"  # newer releases keep less free where chunks of prompts are not recorded
    alone, sees = (share_of(name, engine_version=before_chunks) for name in ("qwen2.5-7b", "qwen2.5-vl-7b"))
    assert sees == pytest.approx(alone * vision_share(spec_of("qwen2.5-vl-7b")))


def test_a_share_that_is_said_is_taken_as_it_is() -> None:
    assert share_of("qwen2.5-vl-7b", memory_fraction=0.8) == 0.8


def test_releases_without_that_rule_are_told_apart() -> None:
    with pytest.raises(InputError, match=r"not modelled for v0\.4\.8"):
        share_of("qwen2.5-vl-7b", engine_version="0.4.9")
