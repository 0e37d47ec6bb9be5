"""What servers keep wider, repeat and page otherwise than the library: each by the engine's own code."""

import pytest

import memsheet
from memsheet.errors import InputError


def held(name: str, path: str, tp: int = 1, engine: str = "vllm") -> int:
    """Bytes of the items whose path ends so."""
    sheet = memsheet.infer(name, engine=engine, tp=tp, max_model_len=1024, fix=False).to_dict()
    items = sheet["ranks"][0]["items"]
    return sum(int(item["bytes"]) for item in items if item["path"].endswith(path))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_router_that_the_engine_makes_in_fp32_takes_twice_the_bytes(engine: str) -> None:
    assert held("glm-4.7", ".mlp.gate", engine=engine) == 89 * 160 * 5120 * 4


def test_a_router_that_the_engine_leaves_is_as_wide_as_the_model() -> None:
    assert held("qwen3-30b-a3b", ".mlp.gate") == 48 * 128 * 2048 * 2
    assert held("step-3.5-flash", ".mlp.gate", engine="sglang") == held("step-3.5-flash", ".mlp.gate") // 2


def test_decays_of_a_state_are_fp32() -> None:
    layers, inner, state = 48, 3072, 16
    assert held("mamba-790m", ".mixer") == layers * inner * (
        4 * state + 2
    )  # A in fp32, D in the model's dtype


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_one_group_of_a_state_space_is_on_every_rank(tp: int) -> None:
    layers, hidden, inner, state, heads = 36, 1024, 1536, 128, 24
    rows = (2 * inner + heads) // tp + 2 * state
    assert held("falcon-h1-0.5b", ".mamba.in_proj", tp) == layers * rows * hidden * 2


def test_as_many_groups_as_ranks_are_cut_like_everything_else() -> None:
    whole = held("nemotron-nano-9b-v2", ".mixer.in_proj")
    assert held("nemotron-nano-9b-v2", ".mixer.in_proj", 8) * 8 == whole


def test_tables_of_some_families_are_fp32() -> None:
    assert held("gpt-oss-20b", "rotary_emb") == 131072 * 64 * 4


def test_layers_that_attend_within_chunks_keep_no_more_than_one() -> None:
    def blocks(length: int, version: str) -> int:
        asked = memsheet.infer(
            "llama-4-scout",
            engine="vllm",
            tp=8,
            max_model_len=length,
            engine_version=version,
            sequences=1,
            fix=False,
        )
        return int(asked.to_dict()["serving"]["kv_bytes_per_sequence"])

    assert blocks(8192, "0.33.0") == blocks(8192, "0.11.0")
    full, within, page = 12, 36, 2 * 8 * 128 * 2 * 16
    assert blocks(131072, "0.33.0") == full * page * 8192 + within * page * -(-8193 // 16)
    assert blocks(131072, "0.11.0") == (full + within) * page * 8192


@pytest.mark.parametrize(
    ("name", "tables", "size"),
    [("gemma-3-4b", 2, 131072 * 256), ("mimo-v2-flash", 2, 262144 * 64), ("qwen3-8b", 1, 40960 * 128)],
)
def test_windows_that_turn_by_other_angles_have_a_table_of_their_own(
    name: str, tables: int, size: int
) -> None:
    assert held(name, "rotary_emb") == tables * size * 2


@pytest.mark.parametrize(
    ("name", "gpus", "version", "tokens"),
    [
        ("deepseek-v2", "8xH100-80GB", "0.33.0", 16), ("deepseek-v2", "8xB200", "0.33.0", 32),
        ("deepseek-v2", "8xH100-80GB", "0.11.0", 64), ("deepseek-v3.2", "8xH200", "0.33.0", 64),
        ("qwen3-8b", "1xH100-80GB", "0.33.0", 16),
    ],
)  # fmt: skip
def test_a_block_of_latents_is_as_long_as_the_backend_says(
    name: str, gpus: str, version: str, tokens: int
) -> None:
    asked = memsheet.infer(
        name, engine="vllm", gpus=gpus, tp=int(gpus[0]), engine_version=version, max_model_len=1024, fix=False
    )
    assert asked.to_dict()["serving"]["page_tokens"] == tokens


def test_a_block_beside_gated_delta_nets_is_a_multiple_of_what_they_hand_out() -> None:
    def tokens(version: str) -> int:
        asked = memsheet.infer(
            "qwen3-next-80b-a3b", engine="vllm", tp=8, max_model_len=8192, engine_version=version, fix=False
        )
        return int(asked.to_dict()["serving"]["page_tokens"])

    assert tokens("0.27.0") == 144
    assert tokens("0.33.0") == 192


def test_a_family_that_is_served_with_the_librarys_modules_turns_by_frequencies() -> None:
    assert held("smollm3-3b", "rotary_emb") == 2 * 4 * 64


@pytest.mark.parametrize(
    ("name", "version", "tp"),
    [("mpt-7b", "0.29.0", 1), ("bamba-9b", "0.24.0", 1), ("wizardcoder-15b", "0.33.0", 2)],
)
def test_what_a_release_does_not_serve_or_not_cut_is_refused(name: str, version: str, tp: int) -> None:
    with pytest.raises(InputError, match="vllm"):
        memsheet.infer(name, engine="vllm", engine_version=version, tp=tp, max_model_len=1024, fix=False)


@pytest.mark.parametrize(
    ("name", "version", "tp"),
    [
        ("mpt-7b", "0.28.0", 1),
        ("bamba-9b", "0.23.0", 1),
        ("wizardcoder-15b", "0.27.0", 2),
        ("wizardcoder-15b", "0.33.0", 1),
    ],
)
def test_and_what_it_served_before_is_not(name: str, version: str, tp: int) -> None:
    asked = memsheet.infer(name, engine="vllm", engine_version=version, tp=tp, max_model_len=1024, fix=False)
    assert asked.to_dict()["ranks"]


def test_a_tower_whose_attention_the_engine_does_not_cut_is_whole_on_every_rank() -> None:
    for path in (".attention.q_proj", ".attention.projection_layer", "multi_modal_projector.linear_1"):
        assert held("internvl3.5-8b", path, 8) == held("internvl3.5-8b", path)
    assert held("internvl3.5-8b", ".mlp.fc1", 8) < held("internvl3.5-8b", ".mlp.fc1") // 7


@pytest.mark.parametrize(("tp", "share"), [(2, 2), (4, 4), (8, 1)])
def test_an_audio_tower_is_cut_where_ranks_divide_its_heads(tp: int, share: int) -> None:
    path = "audio_tower.layers.*.fc1"
    weight = 32 * 5120 * 1280 * 2
    assert held("qwen3-omni-30b-a3b", path, tp) == weight // share + 32 * 5120 * 2 // share


@pytest.mark.parametrize(("tp", "rows"), [(1, 1024), (2, 512), (4, 256), (8, 256)])
def test_experts_that_a_rank_has_few_rows_of_are_padded(tp: int, rows: int) -> None:
    assert held("kimi-linear-48b-a3b", ".mlp.experts", tp) == 26 * 256 * 3 * rows * 2304 * 2
