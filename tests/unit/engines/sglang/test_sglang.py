"""SGLang: the fraction's meaning, its automatic choice, pools of tokens, and the lines it starts with."""

from __future__ import annotations

from typing import Any

import pytest

from laws import every
from memsheet import catalog
from memsheet.budget import Answer, Result
from memsheet.engines.sglang.chunk_graphs import largest_chunk
from memsheet.engines.sglang.facts import RELEASES, captured_chunks, release_of
from memsheet.engines.sglang.pool import Cell, cell_of, pool_bytes, table_bytes
from memsheet.engines.sglang.states import slot_bytes, states_of
from memsheet.engines.sglang.vision_share import vision_share
from memsheet.errors import InputError
from memsheet.questions.accounted import infer
from memsheet.questions.question_parts import read_named_model
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import GIB

EARLY = {"engine_version": "0.4.3.post4", "memory_fraction": 0.85, "max_model_len": 131072}


def served(name: str = "llama-3.1-8b", gpus: str = "1xH100-80GB", **options: Any) -> Answer:
    return infer(name, gpus=gpus, engine="sglang", **{"max_model_len": 8192, **options})


def facts(*args: Any, **options: Any) -> dict[str, Any]:
    return dict(served(*args, **options).serving or {})


def cell(name: str, version: str = "0.5.23", **keys: Any) -> Cell:
    spec = read_model(name, catalog=catalog.find_model, names=catalog.model_names())
    request = {
        "task": "infer",
        "engine": "sglang",
        "serving.max_model_len": 8192,
        **{k.replace("__", "."): v for k, v in keys.items()},
    }
    return cell_of(spec, resolve_request(request, spec).plan, release_of(version))


def test_a_cell_is_a_token_in_every_layer() -> None:
    assert cell("llama-3.1-8b").counted == 32 * 2 * 8 * 128 * 2
    assert cell("llama-3.1-8b", mesh__tp=4).counted == 32 * 2 * 2 * 128 * 2
    assert cell("qwen2.5-7b", mesh__tp=4).whole == 28 * 2 * 1 * 128 * 2
    assert cell("deepseek-v3", mesh__tp=8).counted == 61 * (512 + 64) * 2


def test_windows_have_a_pool_in_families_named_for_it() -> None:
    hybrid = cell("gpt-oss-20b")
    assert (hybrid.whole, hybrid.window, hybrid.reach) == (12 * 2 * 8 * 64 * 2, 12 * 2 * 8 * 64 * 2, 128)
    assert hybrid.counted == pytest.approx(1.8 * hybrid.whole)
    assert cell("gemma-3-27b").window == 0
    assert cell("gpt-oss-20b", "0.5.4").window == 0


def test_pools_have_a_page_to_spare() -> None:
    assert pool_bytes(Cell(whole=100, window=0, reach=0), 10, 1) == 1100
    assert pool_bytes(Cell(whole=100, window=50, reach=128), 1000, 16) == 100 * 1016 + 50 * 816
    assert pool_bytes(Cell(whole=0, window=50, reach=128), 1000, 1) == 50 * 1001
    assert table_bytes(2048, 131072) == 2049 * 131076 * 4


@every("release", RELEASES, ids=lambda release: release.tag)
@every("gpus", ["1xL4", "1xH100-80GB", "4xH100-80GB", "8xH200"])
def test_weights_and_pool_fill_the_fraction_of_what_was_free(release: Any, gpus: str) -> None:
    answer = served("qwen2.5-3b", gpus, engine_version=release.tag)
    serving = answer.serving or {}
    budget, (sheet, *_) = serving["budget"], answer.sheets
    static = budget["weights"].value + sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value
    share = budget["free_before_loading"].value * budget["memory_fraction"]
    assert abs(static - share) < 2 * serving["kv_bytes_per_token_per_rank"]


def test_tokens_given_what_was_printed() -> None:
    """21.63 GB free, 15.54 GB of weights, 0.85: 46,611 tokens of 64 layers with 2 heads of 128 on each of 4
    ranks (SGLang 0.4.3.post4 on L4).
    """
    a_token = 64 * 2 * 2 * 128 * 2
    assert (21.63 * 0.85 - 15.54) * GIB / a_token == pytest.approx(46611, rel=0.005)


def test_the_fraction_is_chosen_by_ranks_then_by_what_is_kept_free() -> None:
    def chosen(gpus: str, version: str, name: str = "llama-3.1-8b") -> float:
        return served(name, gpus, engine_version=version).plan.cache.memory_fraction or 0.0

    assert [chosen(f"{n}xH100-80GB", "0.4.3") for n in (1, 2, 4, 8)] == [0.88, 0.87, 0.85, 0.81]
    assert chosen("1xH200", "0.4.6") == round(1 - 13 * 1024 / 143771, 3)
    kept = 512 + 1.5 * 8192 + 1024 * 8 / 8 + 2 * 512 + 1536  # latent attention on eight ranks
    assert chosen("8xH200", "0.5.23", "deepseek-v3") == round(1 - kept / 143771, 3)
    assert captured_chunks(32) == 8
    assert captured_chunks(8192) == 8 + 14 + 8 + 8 + 12 + 8


@pytest.mark.parametrize(
    "name",
    ["gpt-oss-20b", "gemma-4-26b-a4b", "mellum2-12b-a2.5b", "muse-glimmer-30b", "laguna-xs-33b-a3b", "step-3.7-flash", "beam-1.0-501b-a23b"],
)  # fmt: skip
def test_windows_of_some_families_have_a_pool_of_their_own(name: str) -> None:
    """v0.5.23 configs/model_config.py:2655 hybrid_swa_archs."""
    spec = read_named_model(name, "infer")
    request = {"task": "infer", "engine": "sglang", "serving.memory_fraction": 0.8}
    found = cell_of(spec, resolve_request(request, spec).plan, release_of("0.5.23"))
    assert found.window > 0
    assert found.reach > 0
    older = cell_of(spec, resolve_request(request, spec).plan, release_of("0.5.4"))
    assert older.window == 0
    assert older.whole == found.whole + found.window


def share_kept(name: str, gpus: str, version: str, **options: Any) -> float:
    """MiB that the fraction leaves of a card, above what is left of each."""
    fraction = served(name, gpus, engine_version=version, **options).plan.cache.memory_fraction or 0.0
    return round((1 - fraction) * 81559)


CHUNKS = 58 * 8  # sizes up to 8,192 tokens, v0.5.23 arg_groups/memory_hook.py:389


@pytest.mark.parametrize(
    ("name", "gpus", "version", "options", "recorded"),
    [
        ("llama-3.1-8b", "1xH100-80GB", "0.5.23", {}, True),
        ("llama-3.1-8b", "2xH100-80GB", "0.5.23", {"pp": 2}, False),
        ("llama-3.1-8b", "2xH100-80GB", "0.5.12", {"pp": 2}, False),
        ("kimi-linear-48b-a3b", "2xH100-80GB", "0.5.23", {"tp": 2}, None),
        ("gemma-3-4b", "1xH100-80GB", "0.5.23", {}, True),  # sees nothing unless told to
        ("qwen3-next-80b-a3b", "4xH100-80GB", "0.5.12", {"tp": 4}, False),
        ("qwen3-next-80b-a3b", "4xH100-80GB", "0.5.23", {"tp": 4}, True),
    ],
)
def test_what_is_kept_free_is_for_chunks_that_are_recorded(
    name: str, gpus: str, version: str, options: dict[str, Any], recorded: bool | None
) -> None:
    ranks = int(gpus[0])
    captured = 512 if options.get("tp", 1) >= 4 else 256
    alone = 512 + 1.5 * 8192 + 1024 * ranks / 8 + 2 * captured
    more = {True: CHUNKS, False: 0, None: 0}[recorded]
    assert abs(share_kept(name, gpus, version, **options) - (alone + more)) <= 81559 * 0.0005 + 1


@pytest.mark.parametrize(("name", "recorded"), [("qwen2.5-vl-7b", 0), ("qwen3.5-9b", CHUNKS)])
def test_chunks_beside_pictures_are_recorded_of_some_types(name: str, recorded: int) -> None:
    kept = 512 + 1.5 * 8192 + 1024 / 8 + 2 * 256 + recorded
    factor = vision_share(read_model(name, catalog=catalog.find_model, names=catalog.model_names()))
    fraction = served(name, "1xH100-80GB", engine_version="0.5.23").plan.cache.memory_fraction
    assert fraction == pytest.approx(round(1 - kept / 81559, 3) * factor)


def test_the_largest_graph_is_no_larger_than_the_requests_that_may_run() -> None:
    newer, older = (
        share_kept("llama-3.1-8b", "1xH100-80GB", version, sequences=32) for version in ("0.5.22", "0.5.21")
    )
    assert abs(older - newer - 2 * (256 - 32)) <= 81559 * 0.001 + 1


def test_steps_that_are_not_recorded_have_nothing_kept_free() -> None:
    with_graphs, without = (
        share_kept("llama-3.1-8b", "1xH100-80GB", "0.5.23", cuda_graphs=on) for on in (True, False)
    )
    assert abs(with_graphs - without - 2 * 256 - CHUNKS) <= 81559 * 0.001 + 1


def test_latent_chunks_are_recorded_up_to_a_length_of_the_release() -> None:
    spec = read_model("deepseek-v2-lite", catalog=catalog.find_model, names=catalog.model_names())
    assert [largest_chunk(spec, version, 8192) for version in ("0.5.12", "0.5.22", "0.5.23")] == [
        2048,
        2048,
        8192,
    ]
    assert largest_chunk(None, "0.5.23", 8192, 4096) == 4096


def test_a_smaller_fraction_holds_fewer_tokens_and_none_is_no_start() -> None:
    tokens = [facts(memory_fraction=share)["kv_tokens"] for share in (0.4, 0.6, 0.8)]
    assert tokens == sorted(set(tokens))
    answer = served("llama-3.1-70b", "1xH200", memory_fraction=0.8)
    assert answer.verdict is not None
    assert answer.verdict.result is Result.DOES_NOT_FIT


def test_a_context_longer_than_the_pool_is_told() -> None:
    found = facts("qwen3-32b", max_model_len=40960, memory_fraction=0.82)
    assert found["kv_tokens"] < 40960
    assert "requests end at" in found["warning"]
    assert "warning" not in facts()


def test_start_up_lines() -> None:
    early, late = facts(**EARLY)["start_up"], facts()["start_up"]
    assert "KV Cache is allocated. #tokens: " in early[1]
    assert "dtype: torch.bfloat16, #tokens: " in late[1]
    assert "KV size: " in facts("deepseek-v3", "8xH200", quantize="fp8")["start_up"][1]
    assert late[2].startswith(f"max_total_num_tokens={facts()['kv_tokens']}, chunked_prefill_size=8192")


def test_states_take_nine_parts_of_nineteen_and_their_slots_cap_requests() -> None:
    """0.9 / 1.9 of the room; a slot holds, in bf16, 3 steps of each rank's convolutions and, in fp32, 8 heads
    of 128 x 128 in 36 layers.
    """
    spec = read_model("qwen3-next-80b-a3b", catalog=catalog.find_model, names=catalog.model_names())
    plan = served("qwen3-next-80b-a3b", "4xH100-80GB").plan
    slot = slot_bytes(spec, plan)
    assert slot == 36 * (3 * (2 * 16 * 128 + 32 * 128) // 4 * 2 + 32 * 128 * 128 // 4 * 4)
    room = Bytes(19 * 10**9, 19 * 10**9, 19 * 10**9)
    pool = states_of(slot, room)
    assert 9 * 10**9 - slot < pool.bytes.value <= 9 * 10**9
    assert states_of(slot, Bytes(0, 0, 0)).slots.value == 0
    assert not states_of(0, room).bytes.high
    found = facts("qwen3-next-80b-a3b", "4xH100-80GB")
    assert found["kv_tokens"] > 0
    assert "max_running_requests=2048" not in found["start_up"][2]


def test_adapters_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="not modelled for adapters that sglang serves"):
        served("qwen3-8b", plan={"adapter": {"rank": 16, "kind": "dora"}})


def test_recurrent_states_of_other_families_are_refused() -> None:
    with pytest.raises(InputError, match="recurrent states"):
        served("jamba-v0.1", "4xH100-80GB")


def test_sequences_of_a_run_may_be_shorter_than_the_context() -> None:
    assert served("qwen3-8b", seq_len=2049, max_model_len=40000).plan.serving.max_model_len == 40000
