"""A recorded layer is of the kind whose cache is what the layer keeps, to the element, and is served where a
server was read to keep that.
"""

from __future__ import annotations

import pytest

from memsheet.formulas.serving.kv_cache import kv_elements_per_token, recurrent_elements, state_elements
from memsheet.handing import HandedAttention, Handing
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import Attention, LatentAttention, LinearAttention, Mixer, ModelSpec, RecordedMixer
from memsheet.readers.recorded import model_from_recording
from memsheet.recording import RecordedCache, RecordedParameter, Recording
from memsheet.resolve.recorded_serving import unserved_reason

LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "index_head_dim": 16,
}  # fmt: skip
NET = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
STATES = RecordedCache(0, state_elements=4 * 8 * 16, computed_elements=(2 * 2 * 8 + 4 * 16) * 4)
VLLM = find_engine("vllm")
assert VLLM is not None
HEADED = HandedAttention("self_attn", 4, 4, 8)


def recorded(
    cache: RecordedCache,
    sizes: dict[str, int],
    found: HandedAttention | None,
    architecture: str = "SomeForCausalLM",
) -> ModelSpec:
    handing = Handing(
        architecture=architecture, declares=True, dispatches=True, plan_words=(), causal=True, latent="kv_lora_rank" in sizes,
        experts_per_token=None, attention=(found,), styles=((),), sizes=(tuple(sizes.items()),),
    )  # fmt: skip
    tensors = {"linear_attn.A_log": (4,), "linear_attn.in_proj.weight": (64, 32), "self_attn.o_proj.weight": (32, 32), "mlp.up.weight": (64, 32)}  # fmt: skip
    recording = Recording(
        model_type="some", versions={}, hidden=32, vocab=16, stack="model.layers", kinds=(0, 0),
        layers=(tuple(RecordedParameter(path=path, shape=shape, kind="linear" if len(shape) > 1 else "other") for path, shape in tensors.items()),),
        others=(RecordedParameter(path="model.embed.weight", shape=(16, 32), kind="embedding"),), table="model.embed", projection="",
        tied=True, caches=(cache,), handing=handing,
    )  # fmt: skip
    return model_from_recording(recording, {})


CASES = [
    (RecordedCache(36), LATENT, HEADED, LatentAttention),
    (RecordedCache(36 + 16), LATENT, HEADED, LatentAttention),  # beside an indexer's key
    (RecordedCache(36 + 1), LATENT, HEADED, RecordedMixer),
    (RecordedCache(36, window=8), LATENT, HEADED, RecordedMixer),
    (RecordedCache(36), LATENT, None, RecordedMixer),
    (STATES, NET, None, LinearAttention),
    (RecordedCache(0, state_elements=STATES.state_elements), NET, None, RecordedMixer),
    (RecordedCache(2 * 4 * 8), NET, HEADED, Attention),
    (STATES, {}, None, RecordedMixer),
]


@pytest.mark.parametrize(("cache", "sizes", "found", "kind"), CASES)
def test_a_layer_is_what_keeps_as_much(
    cache: RecordedCache, sizes: dict[str, int], found: HandedAttention | None, kind: type[Mixer]
) -> None:
    mixers = list(recorded(cache, sizes, found).mixers())
    assert mixers
    for mixer in mixers:
        assert type(mixer) is kind
        assert kv_elements_per_token(mixer) == cache.token_elements
        assert recurrent_elements(mixer) == cache.state_elements
        assert state_elements(mixer) == cache.computed_elements


@pytest.mark.parametrize(("cache", "sizes", "found", "kind"), CASES)
def test_a_server_runs_what_it_was_read_to_keep(
    cache: RecordedCache, sizes: dict[str, int], found: HandedAttention | None, kind: type[Mixer]
) -> None:
    read = unserved_reason(VLLM, recorded(cache, sizes, found, "OlmoHybridForCausalLM"))
    assert bool(read) is (kind is RecordedMixer)
    unread = unserved_reason(VLLM, recorded(cache, sizes, found, "HrmTextForCausalLM"))
    assert bool(unread) is (kind is not Attention)


def test_a_delta_net_is_cut_whatever_its_plan_names() -> None:
    (block, *_) = recorded(STATES, NET, None).blocks()
    weights = {weight.path: weight for weight in block.mixers[0].weights}
    assert set(weights) == {"linear_attn.A_log", "linear_attn.in_proj.weight"}
    assert {weight.cut for weight in weights.values()} == {0}
