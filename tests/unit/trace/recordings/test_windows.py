"""A model with windows on record: functions of size hold on their own side of every window, and are recorded
anew on another.
"""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from slow_cases import first_quick

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.account import account_rank
from memsheet.formulas.recorded_lengths import length_side, side_words
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.recorded import model_from_recording
from memsheet.recording import FEWEST_RECORDED, MOST_RECORDED, recording_from, run_from
from memsheet.resolve import resolve_request
from memsheet.trace.recordings.observe import NoFunctionError
from memsheet.trace.recordings.process import ask_recorder
from memsheet.trace.recordings.sizes import ONE, SEVERAL, between_windows

SMALL = {
    "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 500, "num_hidden_layers": 4, "max_position_embeddings": 16384,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"] * 2
CONFIGS = {
    "mistral": {**SMALL, "sliding_window": 2000},
    "olmo3": {**SMALL, "sliding_window": 600, "layer_types": MIXED},
    "gemma3_text": {**SMALL, "sliding_window": 4096, "layer_types": MIXED},
}  # fmt: skip
NO_MORE_THAN = 1e-3


@cache
def recorded(kind):
    """The model by its record and as it is written down, and the ways to run that were asked of a record."""
    config, asked = {"model_type": kind, **CONFIGS[kind]}, []

    def make(key):
        asked.append(json.loads(key))
        return run_from(ask_recorder({"config": config, "model": False, "ways": [key]})["runs"][key])

    found = recording_from(ask_recorder({"config": config, "model": True, "ways": []})["recording"])
    return model_from_recording(replace(found, make=make), config), read_hf_config(config), asked


@pytest.mark.slow
@pytest.mark.parametrize("kind", first_quick(CONFIGS, 1))
@pytest.mark.parametrize("several", [False, True])
def test_a_record_says_what_the_written_layers_say_on_every_side_of_a_window(kind, several):
    model, written, asked = recorded(kind)
    window = CONFIGS[kind]["sliding_window"]
    for tokens in (window - 8, window, window + 8, 2 * window):
        words = {
            "precision": "bf16-pure",
            "attention": "sdpa",
            "seq_len": tokens,
            "microbatch": 3 if several else 1,
        }
        plan = resolve_request({**request_from(words), "task": "train"}, written, None).plan
        one, other = account_rank(model, plan), account_rank(written, plan)
        for instant in other.instants:
            assert one.at(instant).value == pytest.approx(other.at(instant).value, rel=NO_MORE_THAN), (
                tokens,
                instant,
            )
    assert not any("tokens" in words for words in asked), "at single sizes"
    assert len({json.dumps(words.get("between")) for words in asked}) == 2


def test_lengths_lie_on_one_side_of_all_windows():
    recording = replace(recorded("olmo3")[0].recording, windows=(600, 4096))
    assert [length_side(recording, n) for n in (1, 599, 600, 4095, 4096, 10**6)] == [
        (0, 600), (0, 600), (600, 4096), (600, 4096), (4096, None), (4096, None),
    ]  # fmt: skip
    assert [bool(side_words(recording, n)) for n in (599, 600, 4096)] == [True, False, True]
    assert length_side(recording, np.array([700, 4095])) == (600, 4096)
    with pytest.raises(ValueError, match="stratum"):
        length_side(recording, np.array([599, 600]))


@pytest.mark.parametrize("sizes", [ONE, SEVERAL])
@pytest.mark.parametrize(
    "side", [(0, 512), (0, 128), (512, 1024), (2000, None), (2000, 4096), (131072, None), (600, 700)]
)
def test_sizes_are_run_within_their_side_and_one_is_left_to_prove(sizes, side):
    found = between_windows(sizes, *side)
    assert len(set(found)) == len(sizes)
    assert [sequences for sequences, _ in found] == [sequences for sequences, _ in sizes]
    assert all(side[0] <= tokens and (side[1] is None or tokens < side[1]) for _, tokens in found)
    assert found[-1][1] not in {tokens for _, tokens in found[:-1]}


def test_a_side_without_room_has_no_functions():
    with pytest.raises(NoFunctionError):
        between_windows(ONE, 600, 616)


def test_the_sizes_that_are_run_anyhow_are_those_that_need_no_words():
    assert {min(tokens for _, tokens in ONE), max(tokens for _, tokens in SEVERAL)} == {
        FEWEST_RECORDED,
        MOST_RECORDED,
    }
