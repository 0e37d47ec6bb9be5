"""Code that loops over tokens, or over chunks of them, is on record at a few turns: the first and the last as
they ran, those between joined.
"""

import json
from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.words import request_from
from memsheet.readers.recorded import model_from_recording
from memsheet.recording import ALLOCATED, RELEASED, recording_from, run_from
from memsheet.resolve import resolve_request
from memsheet.sheet import Component
from memsheet.timeline import instant_peaks
from memsheet.trace.recordings import record
from memsheet.trace.recordings.loops import _pass_peaks, fold_loops, loop_middles
from memsheet.trace.recordings.parts import FoundPass, PartStorage
from memsheet.trace.recordings.process import ask_recorder
from memsheet.trace.recordings.sizes import LOOPED

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 500, "num_hidden_layers": 4, "max_position_embeddings": 4096,
}  # fmt: skip
PLAIN = {"llama": SMALL, "ministral3": SMALL}
LOOPS = {
    "rwkv": {"hidden_size": 64, "attention_hidden_size": 64, "intermediate_size": 128, "vocab_size": 500, "num_hidden_layers": 2},
    "recurrent_gemma": {**SMALL, "lru_width": 64, "num_hidden_layers": 6, "attention_window_size": 2048},
}  # fmt: skip
LENGTHS = {"rwkv": 128, "recurrent_gemma": 160}
ATTENTION = {"rwkv": "eager"}  # has none
OUTSIDE = (Component.ALLOCATOR_SLACK, Component.CONTEXT, Component.WORKSPACES)
INPUT_BYTES = 4096 * 3 * 8  # ids, labels and their like, which a record leaves out


@cache
def recorded(kind):
    config = {"model_type": kind, **{**PLAIN, **LOOPS}[kind]}

    def make(key):
        return run_from(ask_recorder({"config": config, "model": False, "ways": [key]})["runs"][key])

    found = recording_from(ask_recorder({"config": config, "model": True, "ways": []})["recording"])
    return config, replace(found, make=make)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*PLAIN, *LOOPS])
def test_code_that_loops_is_a_function_of_whole_turns(kind):
    config, _ = recorded(kind)
    key = json.dumps({"precision": "bf16-pure", "attention": "sdpa", "several": True})
    run = run_from(record.answer({"config": config, "model": False, "ways": [key]})["runs"][key])
    assert (run.least > 0) == (kind in LOOPS)
    assert run.every in {1, *(unit for unit, _ in LOOPED)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "recompute"), [("rwkv", "none"), ("rwkv", "full"), ("recurrent_gemma", "none")]
)
def test_a_loop_on_record_is_as_its_trace_at_lengths_that_were_not_run(kind, recompute):
    from memsheet.trace.job import How, trace_training

    config, recording = recorded(kind)
    attention = ATTENTION.get(kind, "sdpa")
    words = {"precision": "bf16-pure", "attention": attention, "recompute": recompute, "microbatch": 4}
    for tokens in (LENGTHS[kind], LENGTHS[kind] - 12):  # by its functions, and of no whole turns
        asked = {**request_from({**words, "seq_len": tokens}), "task": "train"}
        model = model_from_recording(recording, config)
        sheet = account_rank(model, resolve_request(asked, model, None).plan)
        timeline = trace_training(config, resolve_request(asked, None, real=True).plan, How(scratch=False))
        for instant, peak in instant_peaks(timeline).items():
            ours = sum(
                item.at[instant].value
                for item in sheet.items
                if instant in item.at and item.component not in OUTSIDE
            )
            assert ours == pytest.approx(peak.bytes, rel=1e-3, abs=INPUT_BYTES), (tokens, instant)


@pytest.mark.slow
def test_layers_whose_state_keeps_what_it_was_made_of_are_not_on_record_run_again():
    """Its modules name the state of their last forward, and with it all of a forward that is run again."""
    config, recording = recorded("recurrent_gemma")
    words = {
        "precision": "bf16-pure",
        "attention": "sdpa",
        "recompute": "full",
        "microbatch": 4,
        "seq_len": 24,
    }
    model = model_from_recording(recording, config)
    plan = resolve_request({**request_from(words), "task": "train"}, model, None).plan
    with pytest.raises(InputError, match="run again stays on the model"):
        account_rank(model, plan)


# ---- folding -----------------------------------------------------------------------------------------------


def looping_pass(turns, *, saved=True, inner=0):
    """A layer that makes a state and an output in every turn, and lets them go again in backward."""
    one = FoundPass()

    def make(log, path, size):
        one.storages.append(PartStorage(path, size))
        log.append((ALLOCATED, len(one.storages) - 1))
        return len(one.storages) - 1

    before = make(one.forward, "input", 100)
    state, outputs = before, []
    for _ in range(turns):
        scratch = [make(one.forward, "scratch", 7) for _ in range(inner)]
        new = make(one.forward, "state", 10)
        outputs.append(make(one.forward, "output", 5))
        one.forward += [(RELEASED, place) for place in scratch]
        if state != before:
            one.forward.append((RELEASED, state))
        state = new
    if saved:
        one.saved = [before, state, *outputs]
        for place in reversed(outputs):
            grad = make(one.backward, "gradient", 3)
            one.backward += [(RELEASED, place), (RELEASED, grad)]
        one.backward += [(RELEASED, before), (RELEASED, state)]
    return one


@pytest.mark.parametrize("inner", [0, 2, 6])
@pytest.mark.parametrize("saved", [True, False])
def test_what_is_left_of_a_loop_does_not_grow_with_its_turns_and_holds_as_much(saved, inner):
    shapes = set()
    for turns in (7, 8, 9, 40):
        whole = looping_pass(turns, saved=saved, inner=inner)
        folded = fold_loops(whole)
        assert _pass_peaks(folded) == _pass_peaks(whole)
        assert sum(folded.storages[n].bytes for n in folded.saved) == sum(
            whole.storages[n].bytes for n in whole.saved
        )
        shapes.add((tuple(folded.forward), tuple(folded.backward), tuple(s.path for s in folded.storages)))
    assert len(shapes) == 1
    assert len(folded.forward) < 60


def test_a_part_whose_peak_lies_within_a_loop_stays_as_it_ran():
    whole = looping_pass(20)
    grown = next(n for n, (what, place) in enumerate(whole.forward) if n > 30 and what == ALLOCATED)
    place = whole.forward[grown][1]
    whole.storages[place] = replace(whole.storages[place], bytes=10_000)
    assert _pass_peaks(fold_loops(whole)) == _pass_peaks(whole)


def test_a_loop_is_at_least_three_turns_of_the_same():
    assert list(loop_middles("xabcabcabcabcabcy")) == [range(4, 13)]
    assert list(loop_middles("xabcabcy")) == []
    assert list(loop_middles("abcdefgh")) == []
