"""Models that nobody has written down, in servers that run the library's code."""

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.questions.recordings import serving_recording_of
from memsheet.readers.hf_config import model_on_record, read_hf_config
from memsheet.readers.registry import FAMILIES
from memsheet.sheet import Component, Instant

pytest.importorskip("torch")
COMMON = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 8,
    "vocab_size": 4000, "max_position_embeddings": 4096,
}  # fmt: skip
WRITTEN = {
    "llama": {},
    "qwen3": {"head_dim": 64},
    "cohere2": {"sliding_window": 512},
    "qwen3_moe": {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
    "seed_oss": {"head_dim": 32},
}
TABLES = 4096
"""Bytes of frequencies that the library keeps as buffers and a server's own code does not."""


@pytest.fixture(scope="module", params=sorted(WRITTEN))
def pair(request, tmp_path_factory):
    """A family that a reader knows, by its reader and by its record."""
    patch = pytest.MonkeyPatch()
    patch.setenv("MEMSHEET_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield {"model_type": request.param, **COMMON, **WRITTEN[request.param]}
    patch.undo()


@pytest.fixture
def unread(pair, monkeypatch):
    """A question about the family as if no reader knew it."""

    def ask(engine, tp):
        with monkeypatch.context() as patch:
            patch.delitem(FAMILIES, pair["model_type"])
            patch.setattr("memsheet.questions.question_parts._recent_models", {})
            return served(pair, engine, tp)

    return ask


def served(model, engine, tp):
    return memsheet.infer(
        model, engine=engine, gpus=f"{tp}xH100-80GB", tp=tp, max_model_len=4096, sequences=8, fix=False
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_record_is_served_as_its_reader_has_it(pair, unread, engine, tp):
    """The same weights, the same cache of a token and a layout of the same pool, on every number of ranks."""
    written, recorded = served(pair, engine, tp), unread(engine, tp)
    one, other = written.sheets[0], recorded.sheets[0]
    assert other.of(Component.PARAMETERS, instant=Instant.LOAD).value == pytest.approx(
        one.of(Component.PARAMETERS, instant=Instant.LOAD).value, abs=0
    )
    for fact in ("kv_bytes_per_token", "kv_bytes_per_token_per_rank"):
        assert recorded.serving[fact] == written.serving[fact]
    assert other.peak.low - TABLES <= one.peak.value <= other.peak.high
    assert any("transformers" in note for note in other.notes)
    assert not any("transformers" in note for note in one.notes)


def test_a_record_taken_apart_has_every_tensor_once(pair):
    written, recorded = read_hf_config(pair), model_on_record(pair, serving_recording_of)
    assert parameter_count(recorded) == parameter_count(written)
    for block in recorded.blocks():
        paths = [weight.path for weight in block.weights]
        assert len(set(paths)) == len(paths) == len(recorded.recording.layers[block.recorded.part])


@pytest.mark.parametrize(
    ("model_type", "engine", "tp", "words"),
    [
        ("codegen", "vllm", 1, "does not let a server run its attention"),
        ("biogpt", "sglang", 1, "does not let a server run its attention"),
        ("lfm3", "vllm", 1, "do not hand their attention over"),
        ("diffllama", "sglang", 2, "tensor-parallel plan"),
        ("helium", "gpt-fast", 1, "not written down"),
    ],
)
def test_what_a_server_refuses_is_refused_by_name(monkeypatch, tmp_path, model_type, engine, tp, words):
    monkeypatch.setenv("MEMSHEET_CACHE", str(tmp_path))
    with pytest.raises(InputError) as refused:
        served({"model_type": model_type}, engine, tp)
    assert words in str(refused.value)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_no_plan_cuts_is_a_range_on_several_ranks_alone(unread, engine):
    """The rank's weights lie between an even share of everything and everything."""
    whole = unread(engine, 1).sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD)
    share = unread(engine, 4).sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD)
    assert whole.low == whole.value == whole.high
    assert whole.value / 4 <= share.low <= share.value <= share.high <= whole.value
