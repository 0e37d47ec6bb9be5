"""A prompt's cache, taken out and made again as long as more tokens would have made it."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from memsheet.trace.serving_job import clear_prompt_cache

PROMPT, FULL = 8, 20
NOBODY = SimpleNamespace(row_of=lambda _: None, claim=lambda *_: None)


def shapes_after(keys, values, **layer):
    cache = transformers.DynamicCache()
    cache.update(torch.zeros(1, 1, *keys), torch.zeros(1, 1, *values), 0)
    for name, value in layer.items():
        setattr(cache.layers[0], name, value)
    generation = SimpleNamespace(cache=cache, ids=torch.zeros(1, PROMPT + 1))
    for fill in list(clear_prompt_cache(NOBODY, generation)):
        fill.at(FULL)
    return tuple(cache.layers[0].keys.shape[2:]), tuple(cache.layers[0].values.shape[2:])


def test_a_cache_is_made_again_of_every_token():
    assert shapes_after((PROMPT, 4), (PROMPT, 4)) == ((FULL, 4), (FULL, 4))


def test_keys_without_a_rotated_part_grow_though_they_hold_nothing():
    assert shapes_after((PROMPT, 4), (PROMPT, 0)) == ((FULL, 4), (FULL, 0))


def test_what_is_held_ahead_of_a_prompt_stays_ahead():
    picture = 5
    assert shapes_after((PROMPT + picture, 4), (PROMPT + picture, 4)) == ((FULL + picture, 4),) * 2
