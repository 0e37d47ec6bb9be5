"""What is refused rather than put on record as something that it is not."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn

import memsheet
from memsheet.errors import InputError
from memsheet.recording import RecordedGeneration, RecordedPass, RecordedStorage
from memsheet.run import own_generate
from memsheet.run.model import layers_of
from memsheet.trace.recordings.observe import NotRecordableError
from memsheet.trace.recordings.record import playable_document
from memsheet.trace.recordings.worker import LONGEST, _failure

pytestmark = pytest.mark.usefixtures("warm_children")

STORED = RecordedPass(
    storages=(RecordedStorage("cache", ((8, 1, 1),)),), forward=(("alloc", 0),), backward=(), saved=(0,)
)


def generation(**changed):
    return RecordedGeneration(
        **{"prefill": STORED, "decode": STORED, "places": ((0,),), "kept": (0,), **changed}
    )


def test_a_record_that_plays_is_handed_on():
    assert playable_document(generation())["kept"] == [0]


@pytest.mark.parametrize(
    "changed",
    [
        {"kept": (0, 1)},
        {"places": ((0,), (0,))},
        {"decode": RecordedPass(storages=STORED.storages, forward=(("free", 0),), backward=())},
    ],
)
def test_a_record_that_does_not_play_is_refused_where_it_is_made(changed):
    with pytest.raises(NotRecordableError, match="come apart"):
        playable_document(generation(**changed))


class OwnLoop(nn.Module):
    config = SimpleNamespace(is_encoder_decoder=False)

    def can_generate(self):
        return True

    def generate(self):
        return None


def test_a_generate_of_its_own_is_not_taken_for_the_librarys(monkeypatch):
    monkeypatch.setattr(own_generate, "prompt_inputs", lambda *_: {})
    with pytest.raises(InputError, match="OwnLoop: has a generate of its own"):
        own_generate.run_generation(OwnLoop(), None, "dynamic", "cpu", lambda _: None)


def test_what_draws_pictures_is_no_stack_of_layers():
    model = nn.Module()
    model.vqmodel, model.language_model = nn.Module(), nn.Module()
    model.vqmodel.decoder = nn.Module()
    model.vqmodel.decoder.up = nn.ModuleList([nn.Linear(64, 64)])
    model.language_model.layers = nn.ModuleList([nn.Linear(4, 4)])
    assert layers_of(model) is model.language_model.layers


def test_what_reads_pictures_is_no_stack_of_words():
    model, tower, words = nn.Module(), nn.Module(), nn.Module()
    model.tower, model.words, model.table = tower, words, nn.Embedding(4, 4)
    tower.layers, words.layers = nn.ModuleList([nn.Linear(64, 64)]), nn.ModuleList([nn.Linear(4, 4)])
    model.get_input_embeddings = lambda: model.table
    assert layers_of(model) is tower.layers
    tower.main_input_name = "pixel_values"
    assert layers_of(model) is words.layers


def test_a_librarys_message_of_several_lines_is_told_whole() -> None:
    told = _failure(ValueError("Target module Clipped(\n  (linear): Linear()\n) is not supported"))
    assert told == {"raised": "ValueError: Target module Clipped( (linear): Linear() ) is not supported"}
    assert len(_failure(ValueError("long " * 9_999))["raised"]) <= LONGEST


GPT1 = {"model_type": "openai-gpt", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 1000}
EIGHT = {"gpus": "8xH200", "engine": "fsdp2", "microbatch": 2, "seq_len": 64}


@pytest.mark.slow
def test_what_its_own_code_raises_is_told_as_its_own():
    """Buffers in fp32 meet values in bf16: the library's layers run so neither on record nor in a trace."""
    for ask in (memsheet.train, memsheet.trace):
        with pytest.raises(InputError, match=r"raise.* RuntimeError: expected scalar type"):
            ask(GPT1, **EIGHT)


@pytest.mark.slow
def test_buffers_are_stored_as_the_parameters_are():
    """And a trace that takes eager, because there is no other attention, is of all that was asked."""
    told, seen = (ask(GPT1, **EIGHT, precision="bf16-pure") for ask in (memsheet.train, memsheet.trace))
    assert told.plan.mesh == seen.plan.mesh
    assert int(told.sheets[0].allocated.value) == pytest.approx(int(seen.sheets[0].allocated.value), rel=1e-3)
