"""Linear attention in torch's plain operations: what a gated delta net keeps for each chunk, what is not
modelled of it.

Its peaks are among ``traced_families.json``; here its sizes are counted by hand, and compared with traces of
other heads and lengths.
"""

from __future__ import annotations

from typing import Any

import pytest

from layers_kept import kept, made, under
from memsheet.account import account_rank
from memsheet.catalog import find_model
from memsheet.errors import InputError
from memsheet.formulas.model_code.transformers.delta_chunks import ONE, PADDED, TWO, chunk_axes, chunk_options
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Instant, Sheet

KEY_HEADS, HEADS, KEY, VALUE, CHUNK = 4, 8, 32, 64, 64
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_next", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 4000, "max_position_embeddings": 4096, "intermediate_size": 1408, "moe_intermediate_size": 384,
    "shared_expert_intermediate_size": 640, "num_experts": 8, "num_experts_per_tok": 2, "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": HEADS, "linear_key_head_dim": KEY, "linear_value_head_dim": VALUE, "linear_conv_kernel_dim": 4,
}  # fmt: skip


def _sheet(config: dict[str, Any], **request: Any) -> Sheet:
    model = read_hf_config(config)
    return account_rank(
        model,
        resolve_request(
            {"engine": "transformers", "optimizer.implementation": "fused", **request}, model
        ).plan,
    )


def _saved(length: int, ending: str, precision: str = "bf16-pure") -> int:
    items = _sheet(CONFIG, seq_len=length, microbatch=1, **{"precision.name": precision}).items
    return sum(
        int(item.at[Instant.LOSS].value)
        for item in items
        if item.path.endswith(ending) and Instant.LOSS in item.at
    )


@pytest.mark.parametrize("length", [192, 512, 1000])
def test_every_chunk_keeps_its_state(length: int) -> None:
    """In fp32, before each chunk: a matrix of a key's size by a value's for each head, in three layers of
    four.
    """
    chunks = -(-length // CHUNK)
    states = _saved(length, "linear_attn/states") + _saved(length, "linear_attn/state")
    assert states == 3 * 4 * chunks * HEADS * KEY * VALUE


@pytest.mark.parametrize("length", [64, 65, 640])
def test_pairs_are_kept_inside_chunks_alone(length: int) -> None:
    """Decays, the system and what is inside chunks grow with the sequence, not with its square."""
    pairs = 4 * -(-length // CHUNK) * CHUNK * CHUNK * HEADS
    for name in ("pairwise", "ut_system", "intra_attn"):
        assert _saved(length, f"linear_attn/{name}") == 3 * pairs


def test_autocast_keeps_copies_of_every_chunk_in_its_dtype() -> None:
    wide, narrow = (_saved(1024, "linear_attn/values", name) for name in ("bf16-pure", "bf16-autocast"))
    assert narrow == wide  # two copies in half of the bytes
    assert _saved(1024, "linear_attn/intra_attn", "bf16-autocast") == 0


@pytest.mark.parametrize(
    ("length", "options"),
    [(1, {ONE, PADDED}), (64, {ONE}), (65, {TWO, PADDED}), (128, {TWO}), (129, {PADDED}), (4096, set())],
)
def test_a_recording_knows_few_chunks_and_unfilled_ones(length: int, options: set[str]) -> None:
    assert chunk_options(length) == options
    axes = chunk_axes(length)
    assert axes["N"] == axes["m"] * CHUNK >= length > axes["N"] - CHUNK
    assert (axes["m-2"], axes["m-3"]) == (max(axes["m"] - 2, 0), max(axes["m"] - 3, 0))


@pytest.mark.parametrize(
    ("change", "length", "sequences", "precision", "traced"),
    [
        ({}, 64, 1, "bf16-pure", 245_104_848),
        ({}, 100, 1, "bf16-pure", 245_421_888),
        ({}, 150, 1, "bf16-autocast", 490_385_840),
        ({"linear_num_key_heads": 8}, 512, 2, "bf16-pure", 481_781_576),
        ({"linear_num_key_heads": 1}, 200, 1, "bf16-pure", 251_610_800),
    ],
)
def test_a_step_has_the_traced_peak(
    change: dict[str, int], length: int, sequences: int, precision: str, traced: int
) -> None:
    sheet = _sheet(
        {**CONFIG, **change},
        seq_len=length,
        microbatch=sequences,
        attention="sdpa",
        **{"precision.name": precision},
    )
    assert sheet.peak.value == pytest.approx(traced, rel=2e-4)


@pytest.mark.parametrize("key_heads", [1, 2, 4, HEADS])
def test_heads_that_lie_beside_others_are_copied(key_heads: int) -> None:
    """modeling_qwen3_next.py:639-654, 679: a part of a joint product is reshaped, which is a copy wherever
    torch finds no view of it: not of one key head's, and of values and gates not of a head each.
    """
    torch = pytest.importorskip("torch")
    each = HEADS // key_heads * VALUE
    joint = torch.empty(2, 64, key_heads, 2 * KEY + 2 * each)
    parts = dict(zip("qkvz", torch.split(joint, [KEY, KEY, each, each], dim=3), strict=True))
    laid = {name: part.reshape(2, 64, -1) for name, part in parts.items()}
    laid["z"] = parts["z"].reshape(2, 64, -1, VALUE)
    copied = {
        name: 2 * part.numel() for name, part in laid.items() if part.data_ptr() != parts[name].data_ptr()
    }
    tensors = made({**CONFIG, "linear_num_key_heads": key_heads})
    assert {name: tensors[at] for name in "qkvz" if (at := f"linear_attn/{name}") in tensors} == copied


@pytest.mark.parametrize(
    ("targets", "precision", "recompute", "traced"),
    [
        (["in_proj_qkvz", "out_proj"], "bf16-autocast", "full", 170_254_744),
        (["in_proj_qkvz", "out_proj", "q_proj", "o_proj"], "bf16-pure", "none", 184_916_800),
    ],
)
def test_adapters_have_the_traced_peak(
    targets: list[str], precision: str, recompute: str, traced: int
) -> None:
    """LoRA of rank 16; a frozen convolution keeps its input too."""
    adapter = {
        "adapter.rank": 16,
        "adapter.targets": targets,
        "precision.name": precision,
        "recompute.mode": recompute,
    }
    assert _sheet(CONFIG, seq_len=512, microbatch=1, attention="sdpa", **adapter).peak.value == pytest.approx(
        traced, rel=2e-4
    )


def test_gates_of_attention_are_kept() -> None:
    """Each query comes with a gate: its sigmoid is kept, and what it multiplies."""
    held = kept({**CONFIG, "layer_types": ["full_attention"] * 4})
    assert under(held, "self_attn/sigmoid") == 2 * 64 * HEADS * 64 * 2


@pytest.mark.parametrize("engine", ["transformers", "fsdp2", "deepspeed"])
def test_a_bundled_model_answers(engine: str) -> None:
    found = find_model("qwen3-next-80b-a3b")
    assert found is not None
    model = read_hf_config(found["config"], name="qwen3-next-80b-a3b")
    sharded = {"mesh.dp_shard": 64} if engine != "transformers" else {}
    sheet = account_rank(model, resolve_request({"engine": engine, "seq_len": 4096, **sharded}, model).plan)
    assert sheet.peak.value > 0
    assert any("flash-linear-attention" in note for note in sheet.notes)


@pytest.mark.parametrize(
    ("request_", "why"),
    [({"precision.name": "fp32"}, "copies"), ({"offload.activations": True}, "one by one")],
)
def test_what_was_not_compared_is_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        _sheet(CONFIG, seq_len=128, **request_)


def test_a_processor_is_refused() -> None:
    model = read_hf_config(CONFIG)
    with pytest.raises(InputError, match="convolves"):
        account_rank(
            model, resolve_request({"engine": "transformers", "seq_len": 64}, model).plan, device="cpu"
        )
