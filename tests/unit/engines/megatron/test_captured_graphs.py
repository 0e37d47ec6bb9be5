"""CUDA graphs of Megatron-Core: static buffers by hand, what their pool keeps, names, and laws."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

import memsheet
from memsheet.sheet import Bytes, Component, Instant, Sheet

TINY: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "model_type": "mixtral", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
STREAM = 2 * 512 * 256


def sheets(config: dict[str, Any] = TINY, *names: str, **options: Any) -> tuple[Sheet, ...]:
    asked = {"engine": "megatron", "seq_len": 512, "gpus": "8xH100-80GB", "fix": False, **options}
    return memsheet.train(config, **({"cuda_graphs": names} if names else {}), **asked).sheets


def row(found: Sheet, path: str, instant: Instant = Instant.BACKWARD) -> Bytes:
    (item,) = (i for i in found.items if i.path == path)
    return item.at[instant]


def of_graphs(found: Sheet) -> list[str]:
    return [i.path for i in found.items if i.path.startswith(("cuda_graphs/", "static/"))]


def test_without_graphs_there_are_no_rows_of_them() -> None:
    (found,) = sheets()
    assert of_graphs(found) == []
    (off,) = sheets(cuda_graphs=False)
    assert off.items == found.items


def test_a_layers_graph_is_given_a_mask_of_its_own_and_hands_out_a_copy_of_the_stream() -> None:
    """Per layer s · s booleans and s · h in bf16; one buffer of gradients that arrive."""
    (found,) = sheets(TINY, "transformer_engine", "attn", "mlp")
    assert row(found, "static/masks") == Bytes(0, 8 * 512 * 512, 8 * 512 * 512)
    assert row(found, "static/gradients") == Bytes(0, STREAM, STREAM)
    assert row(found, "cuda_graphs/outputs") == Bytes.exact(8 * STREAM)


def test_attention_alone_hands_on_what_the_next_module_saves_anyway() -> None:
    (found,) = sheets(TINY, "transformer_engine", "attn")
    assert row(found, "cuda_graphs/outputs") == Bytes.exact(0)
    assert row(found, "static/masks").value == 8 * 512 * 512
    (without,) = sheets(TINY, "transformer_engine", "mlp")
    assert row(without, "static/masks").high == 0


@pytest.mark.parametrize(("dispatch", "copies"), [("alltoall", 2), ("hybridep", 0)])
def test_a_captured_router_hands_out_its_shares_and_the_tokens_that_were_permuted(
    dispatch: str, copies: int
) -> None:
    """512 tokens of 8 shares in bf16; of two experts a token, a row and an fp32 share each."""
    names = ("transformer_engine", "moe_router", "moe_preprocess")
    (found,) = sheets(SPARSE, *names, ep=8, moe_dispatch=dispatch)
    assert row(found, "cuda_graphs/outputs") == Bytes.exact(2 * (2 * 512 * 8 + copies * (STREAM + 4 * 512)))


def test_graphs_of_core_itself_write_into_one_anothers_buffers() -> None:
    (found,) = sheets(TINY, "local")
    assert row(found, "static/masks") == row(found, "cuda_graphs/outputs") == Bytes.exact(0)
    (either,) = sheets(TINY, "full")
    assert row(either, "cuda_graphs/outputs") == Bytes(0, 8 * STREAM, 8 * STREAM)


def test_the_pool_keeps_what_layers_saved_while_the_optimizer_steps() -> None:
    (found,) = sheets(TINY, "full")
    saved = [
        i.at[Instant.LOSS].value
        for i in found.items
        if i.component is Component.SAVED_ACTIVATIONS
        and i.path.startswith("model.layers.*")
        and not i.path.endswith("*/output")
    ]
    assert row(found, "cuda_graphs/saved", Instant.OPTIMIZER_STEP) == Bytes.exact(sum(saved))
    assert Instant.LOSS not in next(i for i in found.items if i.path == "cuda_graphs/saved").at


def test_more_that_is_captured_holds_no_less() -> None:
    at = [Instant.FORWARD, Instant.LOSS, Instant.BACKWARD, Instant.OPTIMIZER_STEP]
    ordered = [(), ("local",), ("transformer_engine", "attn"), ("transformer_engine", "attn", "mlp")]
    ways = [sheets(TINY, *names)[0] for names in ordered]
    for fewer, more in pairwise(ways):
        for instant in at:
            assert more.at(instant, without=(Component.ALLOCATOR_SLACK,)).high >= (
                fewer.at(instant, without=(Component.ALLOCATOR_SLACK,)).high
            )
    assert len({tuple(i.path for i in s.items if i.component is Component.PARAMETERS) for s in ways}) == 1


def test_a_pipelines_stage_has_static_buffers_of_the_micro_batches_in_flight() -> None:
    names, lengths = ("transformer_engine", "attn"), {"pp": 4, "global_batch": 32}
    first, *_, last = sheets(TINY, *names, **lengths)
    assert row(first, "static/masks").value == 4 * row(last, "static/masks").value == 4 * 2 * 512 * 512
    chunked = sheets(TINY, *names, vpp=2, schedule="interleaved", **lengths)
    assert row(chunked[0], "static/masks").value == (2 * 3 + 4 + 1) * 512 * 512


def test_ranks_divide_what_graphs_hold_along_tensors_and_sequences() -> None:
    """The mask's rows over context-parallel ranks, the stream over both."""
    (one,) = sheets(TINY, "full")
    (cut,) = sheets(TINY, "full", cp=2, tp=2, sequence_parallel=True)
    assert 2 * row(cut, "static/masks").value == row(one, "static/masks").value
    assert 4 * row(cut, "cuda_graphs/outputs").value == row(one, "cuda_graphs/outputs").value


def test_one_graph_of_the_step_has_the_inputs_of_every_micro_batch() -> None:
    (found,) = sheets(TINY, "full_iteration", global_batch=32)
    assert row(found, "static/inputs") == Bytes.exact(3 * 512 * (3 * 8 + 4))
    kept = row(found, "cuda_graphs/saved", Instant.OPTIMIZER_STEP)
    made = (Component.SAVED_ACTIVATIONS, Component.TEMPORARIES)
    most = max(sum(found.of(c, instant=i).value for c in made) for i in (Instant.LOSS, Instant.BACKWARD))
    assert kept == Bytes.exact(most)


@pytest.mark.parametrize(
    ("release", "names", "least"),
    [("core 0.15", ["transformer_engine", "attn"], 1), ("core 0.15", ["attn"], 0), ("core 0.14", ["transformer_engine", "attn"], 0), (None, ["transformer_engine", "attn"], 0)],
)  # fmt: skip
def test_old_releases_make_the_inputs_of_all_micro_batches_before_they_capture(
    tmp_path: Any, release: str | None, names: list[str], least: int
) -> None:
    """Between two steps, where no activation stands; they stay where TransformerEngine is old."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"engine_version": release, "cuda_graphs": names}), encoding="utf-8")
    (found,) = sheets(plan=str(file), global_batch=32)
    size = 4 * 8 * (STREAM + 512 * 512)
    path = "static/inputs_of_all_microbatches"
    assert row(found, path) == Bytes(0, 0, size)
    assert row(found, path, Instant.OPTIMIZER_STEP) == Bytes(least * size, size, size)
    (without,) = sheets(TINY, "transformer_engine", "attn")
    kept = row(without, "cuda_graphs/saved", Instant.OPTIMIZER_STEP)
    assert row(found, "cuda_graphs/saved", Instant.OPTIMIZER_STEP) == Bytes(
        max(kept.value - size, 0), max(kept.value - size, 0), kept.value
    )
    assert any("engine_version" in note for note in found.notes) is (release is None)


@pytest.mark.parametrize(
    ("release", "names"),
    [("core 0.16", ["attn"]), (None, ["attn", "mlp"]), (None, ["local", "attn"]), (None, ["full_iteration"])],
)
def test_later_releases_take_buffers_again(tmp_path: Any, release: str | None, names: list[str]) -> None:
    """Parts of a layer beside attention are named since core 0.16."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"engine_version": release, "cuda_graphs": names}), encoding="utf-8")
    (found,) = sheets(plan=str(file), global_batch=32)
    assert "static/inputs_of_all_microbatches" not in of_graphs(found)


@pytest.mark.parametrize(
    ("config", "names", "options", "reason"),
    [
        (TINY, ("head",), {}, "nothing that megatron captures"),
        (TINY, ("moe_router",), {}, "names no part"),
        (SPARSE, ("mlp",), {}, "names no part"),
        (SPARSE, ("moe",), {}, "padded to a capacity"),
        (SPARSE, ("moe", "moe_router"), {}, "holds the router"),
        (TINY, ("attn",), {"recompute": "full"}, "recomputed whole"),
    ],
)
def test_what_is_not_captured_is_refused_by_name(
    config: dict[str, Any], names: tuple[str, ...], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(memsheet.InputError, match=reason):
        sheets(config, *names, **options)


def test_a_step_of_one_graph_may_recompute_whole_layers() -> None:
    assert sheets(TINY, "full_iteration", recompute="full")
    assert sheets(SPARSE, "moe", moe_capacity_factor=1.5, moe_pad_to_capacity=True)
