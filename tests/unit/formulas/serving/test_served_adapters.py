"""LoRA adapters that a server keeps room for: bytes as its own layers allocate them, what is left of the
cache, and the flags that say so.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsheet import catalog
from memsheet.budget import Answer
from memsheet.engines.sglang.lora import buffers_of
from memsheet.engines.sglang.lora_layers import PARTS
from memsheet.engines.vllm.lora import _pair_bytes, pairs_of
from memsheet.engines.vllm.lora_releases import RANKS, facts_of
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import written_request
from memsheet.exchange.plan_files import write_format_files
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.document import plan_document
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.questions import accounted
from memsheet.readers.model import read_model
from memsheet.report.screen.table import render_answer
from memsheet.report.shared.look import Look
from memsheet.resolve import resolve_document
from memsheet.sheet import Bytes, Component, Instant

SERVERS = ("vllm", "sglang")
NEWEST = facts_of((10**6, 0))
assert NEWEST is not None


@cache
def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


@cache
def served(name: str, engine: str, gpus: str = "1xH100-80GB", **more: Any) -> Answer:
    return accounted.infer(name, gpus=gpus, engine=engine, **{"max_model_len": 1024, **more})


def room(answer: Answer) -> int:
    """Bytes of the matrices on a rank."""
    return sum(
        i.largest.value
        for i in answer.sheets[0].items
        if i.component is Component.BUFFERS and ".lora_" in i.path
    )


def elements(name: str, plan: Plan) -> int:
    """Of one adapter on a rank of vLLM."""
    return sum(pair.elements for pair in pairs_of(model(name), plan, NEWEST))


# ---- worked by hand ----------------------------------------------------------------------------------------

LLAMA = 32 * 16 * ((4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 2 * (4096 + 14336) + (14336 + 4096))
LLAMA_ENDS = 2 * 16 * (128_256 + 4096)


def test_vllm_keeps_both_matrices_of_every_linear_layer() -> None:
    """vLLM v0.33.0 lora/layers/base_linear.py:132: (max_loras, 1, rank, in) and (max_loras, 1, out, rank),
    whichever adapters come.
    """
    assert LLAMA + LLAMA_ENDS == 46_178_304
    assert room(served("llama-3.1-8b", "vllm", lora_rank=16, max_loras=4)) == 4 * 2 * 46_178_304
    assert room(served("llama-3.1-8b", "vllm", lora_rank=16)) == 2 * 46_178_304  # max_loras 1


def test_tensor_parallelism_cuts_one_matrix_of_a_pair() -> None:
    """A column's second, a row's first (base_linear.py:110-130); ends are whole on every rank
    (logits_processor.py:86).
    """
    halves = 32 * 16 * ((4096 + 2048) + 2 * (4096 + 512) + (2048 + 4096) + 2 * (4096 + 7168) + (7168 + 4096))
    assert room(served("llama-3.1-8b", "vllm", "2xH100-80GB", lora_rank=16)) == 2 * (halves + LLAMA_ENDS)
    both = served("llama-3.1-8b", "vllm", "2xH100-80GB", lora_rank=16, fully_sharded_loras=True)
    assert room(both) == 2 * (LLAMA // 2 + LLAMA_ENDS)


def test_an_adapter_on_one_piece_has_room_on_the_joined_layer() -> None:
    """lora/utils.py:298: q_proj as a target wraps qkv_proj, whose three pairs are all made."""
    qkv = 32 * 16 * ((4096 + 4096) + 2 * (4096 + 1024))
    assert room(served("llama-3.1-8b", "vllm", lora_rank=16, lora_targets=("q_proj",))) == 2 * qkv
    assert room(served("llama-3.1-8b", "vllm", lora_rank=16, lora_targets=("qkv_proj",))) == 2 * qkv
    older = served("llama-3.1-8b", "vllm", engine_version="0.14.0", lora_rank=16, lora_targets=("q_proj",))
    assert room(older) == 2 * (LLAMA + LLAMA_ENDS), "before there was --lora-target-modules"


def test_every_expert_has_pairs_of_its_own() -> None:
    """lora/layers/fused_moe.py:172-233: of gate, up and down; from v0.14.0 on. The router is a linear layer
    too.
    """
    attention = 4096 + 4096 + 2 * (4096 + 1024) + 4096 + 4096 + (4096 + 8)
    expert = 2 * (4096 + 14336) + 14336 + 4096
    ends = 2 * 16 * (32_000 + 4096)
    plan = served("mixtral-8x7b", "vllm", "1xH200", lora_rank=16).plan
    assert elements("mixtral-8x7b", plan) == 32 * 16 * (attention + 8 * expert) + ends
    old = facts_of((0, 11))
    assert old is not None
    pairs = pairs_of(model("mixtral-8x7b"), plan, old)
    assert not any(pair.path.endswith("experts") for pair in pairs)


def test_sglang_keeps_whole_joined_layers_for_eight_slots() -> None:
    """SGLang v0.5.23 lora/mem_pool.py:424, 527: (slots, 3 · rank, in) and (slots, out, rank) of qkv_proj, for
    q_proj and v_proj too.
    """
    qkv = 32 * (3 * 24 * 4096 + (4096 + 2048) * 24)
    answer = served("llama-3.1-8b", "sglang", lora_rank=24, lora_targets=("q_proj", "v_proj"))
    assert answer.plan.served_adapters is not None
    assert answer.plan.served_adapters.slots == 8
    assert room(answer) == 8 * 2 * qkv


def test_sglang_makes_the_ends_twice_where_both_are_targets() -> None:
    """mem_pool.py:713-737: each of the two calls makes buffers of both names; the head's second matrix is
    cut.
    """
    one, both = (
        served("llama-3.1-8b", "sglang", "2xH100-80GB", lora_rank=16, max_loras=1, lora_targets=targets)
        for targets in (("lm_head",), ("embed_tokens", "lm_head"))
    )
    head, table = 16 * 4096 + 64_128 * 16, 16 * 128_256 + 4096 * 16
    assert room(one) == 2 * head
    assert room(both) == 2 * 2 * (head + table)


def test_words_that_adapters_might_add_cost_older_releases_more() -> None:
    """v0.11.0: lora_extra_vocab_size 256, in tables, in both ends' matrices, and as the adapters' own
    words.
    """
    old, new = (
        served("llama-3.1-8b", "vllm", engine_version=version, lora_rank=16)
        for version in ("0.11.0", "0.14.0")
    )
    assert room(old) - room(new) == 2 * 16 * (256 + 256), "both ends, 128,256 and 256 being a multiple of 256"
    words = next(i.largest.value for i in old.sheets[0].items if i.path == "lora_extra_vocab")
    assert words == 2 * 4096 * (256 + 256 + 256 + 256)


# ---- laws --------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    rank=st.sampled_from(RANKS[1:-1]),
    slots=st.integers(1, 9),
    engine=st.sampled_from(SERVERS),
    tp=st.sampled_from((1, 2, 4)),
)
def test_room_grows_with_slots_and_rank_in_proportion(rank: int, slots: int, engine: str, tp: int) -> None:
    few = served("llama-tiny", engine, f"{tp}xH100-80GB", lora_rank=rank, max_loras=slots)
    more = served("llama-tiny", engine, f"{tp}xH100-80GB", lora_rank=rank, max_loras=slots + 1)
    wider = served(
        "llama-tiny",
        engine,
        f"{tp}xH100-80GB",
        lora_rank=2 * rank if 2 * rank in RANKS else 512,
        max_loras=slots,
    )
    assert room(more) * slots == room(few) * (slots + 1)
    assert room(wider) > room(few)


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize("asked", [{}, {"max_loras": 0}, {"max_loras": 0, "lora_rank": 16}])
def test_no_adapters_cost_nothing(engine: str, asked: dict[str, Any]) -> None:
    assert served("llama-tiny", engine, **asked).sheets == served("llama-tiny", engine).sheets


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-2-9b"])
@pytest.mark.parametrize("tp", [2, 4])
def test_shards_make_the_whole_where_both_matrices_are_cut(name: str, tp: int) -> None:
    """Layers whose weights are cut, whose heads are as many as ranks or more; routers and ends are on every
    rank.
    """
    plan = served(name, "vllm", f"{tp}xH200", lora_rank=64, fully_sharded_loras=True).plan
    alone = replace(plan, mesh=served(name, "vllm", "1xH200", lora_rank=64).plan.mesh)
    mine, whole = (
        {pair.path: pair.elements for pair in pairs_of(model(name), one, NEWEST)} for one in (plan, alone)
    )
    everywhere = {path for path in whole if path in ("embed_tokens", "lm_head") or path.endswith(".gate")}
    assert {path for path in whole if mine[path] * tp != whole[path]} == everywhere
    assert all(mine[path] == whole[path] for path in everywhere)


@pytest.mark.parametrize("engine", SERVERS)
def test_the_cache_has_less_by_the_room_of_the_adapters(engine: str) -> None:
    without, beside = (
        served("llama-3.1-8b", engine),
        served("llama-3.1-8b", engine, lora_rank=64, max_loras=8),
    )
    caches = [
        answer.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).value for answer in (without, beside)
    ]
    grown = [
        answer.sheets[0].of(Component.BUFFERS, instant=Instant.DECODE).value for answer in (without, beside)
    ]
    slack = [
        answer.sheets[0].of(Component.ALLOCATOR_SLACK, instant=Instant.DECODE).value
        for answer in (without, beside)
    ]
    lost, taken = caches[0] - caches[1], grown[1] - grown[0]
    assert taken >= room(beside) > 0
    seen = slack[1] - slack[0] if engine == "sglang" else 0  # which asks the driver what is free
    assert abs(lost - taken - seen) <= 2**22, "but for the last blocks"


def test_a_rank_keeps_whole_adapters_on_the_host() -> None:
    one = served("llama-3.1-8b", "vllm", "2xH100-80GB", lora_rank=16, max_loras=2, max_cpu_loras=6)
    assert one.sheets[0].host_bytes == 6 * 2 * (LLAMA + LLAMA_ENDS)
    assert served("llama-3.1-8b", "vllm", lora_rank=16, max_loras=3).sheets[0].host_bytes == 3 * 2 * (
        LLAMA + LLAMA_ENDS
    )


def test_graphs_are_recorded_with_adapters_and_without() -> None:
    graphs = [
        served("llama-tiny", "vllm", **more).sheets[0].of(Component.CUDA_GRAPHS, instant=Instant.DECODE)
        for more in ({}, {"lora_rank": 16})
    ]
    assert graphs[1].high == 2 * graphs[0].high
    old = [
        served("llama-tiny", "vllm", engine_version="0.11.0", **more)
        .sheets[0]
        .of(Component.CUDA_GRAPHS, instant=Instant.DECODE)
        for more in ({}, {"lora_rank": 16})
    ]
    assert old[0] == old[1]


def test_a_family_nobody_read_has_a_range_of_ends() -> None:
    unknown = replace(model("llama-tiny"), model_type="unheard_of")
    plan = served("llama-tiny", "vllm", lora_rank=16).plan
    ends = [pair for pair in pairs_of(unknown, plan, NEWEST) if pair.path in ("embed_tokens", "lm_head")]
    assert len(ends) == 2
    assert not any(pair.sure for pair in ends)


def test_sglang_has_experts_in_every_layer_and_dense_ones_beside_a_shared_expert_alone() -> None:
    plan = served("llama-tiny", "sglang", lora_rank=16).plan
    assert plan.served_adapters is not None
    for name, dense in (("qwen3-30b-a3b", False), ("qwen1.5-moe-a2.7b", True)):
        found = {
            one.path.rsplit(".", 1)[-1]: one.times
            for one in buffers_of(model(name), plan.mesh, plan.served_adapters)
        }
        layers = sum(stack.layers for stack in model(name).stacks)
        assert found["gate_up_proj_moe"] == found["down_proj_moe"] == found["qkv_proj"] == layers
        assert ("gate_up_proj" in found) is dense
    assert PARTS["qkv_proj"] == 3


# ---- as it is asked, said and refused ----------------------------------------------------------------------


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize(
    "more", [{}, {"lora_targets": ("q_proj", "o_proj")}, {"max_loras": 3, "max_cpu_loras": 9}]
)
def test_a_plan_with_adapters_reads_back(engine: str, more: dict[str, Any]) -> None:
    answer = served("llama-tiny", engine, lora_rank=16, **more)
    document = plan_document(answer.plan, model="llama-tiny", cluster=answer.cluster)
    assert resolve_document(document, model("llama-tiny")) == answer.plan


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize(
    "more", [{}, {"lora_targets": ("q_proj", "o_proj"), "max_loras": 3, "max_cpu_loras": 9}]
)
def test_a_command_says_the_plan_and_reads_back(engine: str, more: dict[str, Any]) -> None:
    answer = served("llama-tiny", engine, lora_rank=16, **more)
    document = plan_document(answer.plan, model="llama-tiny", cluster=answer.cluster)
    form = find_format(engine)
    text = write_format_files(form, written_request(document, gpus=1, nodes=1, accumulation=1))[form.file]
    assert "--enable-lora" in text
    request = read_text(form.file, text, {"json": parse_json, "yaml": parse_yaml}).request
    said = {key: value for key, value in request.items() if "lora" in key or key.startswith("adapter.")}
    room_ = answer.plan.served_adapters
    assert room_ is not None
    assert said["adapter.rank"] == 16
    assert said["serving.max_loras"] == room_.slots
    assert said.get("adapter.targets") == (list(room_.targets) if room_.targets else None)


def reading(text: str) -> dict[str, Any]:
    return dict(read_text("serve.sh", text, {"json": parse_json, "yaml": parse_yaml}).request)


def test_flags_of_adapters_count_where_adapters_are_on() -> None:
    assert not {
        key
        for key in reading("vllm serve m --max-loras 4 --max-lora-rank 64")
        if "lora" in key or "adapter" in key
    }
    on = reading(
        "vllm serve m --enable-lora --lora-modules a=/x b=/y --lora-target-modules q_proj v_proj "
        "--lora-dtype half --port 80"
    )
    assert (on["serving.max_loras"], on["adapter.rank"], on["adapter.targets"], on["adapter.dtype"]) == (
        1,
        16,
        ["q_proj", "v_proj"],
        "fp16",
    )
    paths = reading("python -m sglang.launch_server --model-path m --lora-paths a=/x b=/y --max-lora-rank 8")
    assert (paths["serving.max_loras"], paths["adapter.rank"]) == (8, 8)
    assert "adapter.targets" not in paths
    assert reading("python -m sglang.launch_server --lora-target-modules all --model-path m")["@model"] == "m"


@pytest.mark.parametrize(
    ("engine", "name", "asked", "field", "words"),
    [
        ("vllm", "llama-tiny", {"lora_rank": 24}, "adapter.rank", "--lora-rank 32"),
        ("vllm", "gpt2", {"lora_rank": 16}, "adapter.rank", "takes no adapters"),
        ("vllm", "mamba-130m", {"lora_rank": 16}, "adapter.rank", "recurrent"),
        ("vllm", "llama-tiny", {"lora_rank": 16, "max_loras": 4, "max_cpu_loras": 2}, "serving.max_cpu_loras", "below max_loras"),
        ("vllm", "llama-tiny", {"lora_rank": 16, "lora_targets": ("Wqkv",)}, "adapter.targets", "names no layer"),
        ("vllm", "llama-tiny", {"lora_rank": 16, "lora_dtype": "fp32"}, "adapter.dtype", "keeps adapters in"),
        ("vllm", "llama-tiny", {"lora_rank": 16, "engine_version": "0.7.3"}, "engine_version", "older"),
        ("sglang", "llama-tiny", {"max_loras": 2}, "adapter.rank", "is missing"),
        ("sglang", "llama-tiny", {"lora_rank": 16, "engine_version": "0.4.6"}, "engine_version", "older"),
        ("sglang", "llama-tiny", {"lora_rank": 16, "fully_sharded_loras": True}, "serving.fully_sharded_loras", "not modelled"),
        ("sglang", "llama-tiny", {"lora_rank": 16, "speculative": "draft", "draft_model": "llama-tiny"}, "speculative.method", "adapters"),
        ("gpt-fast", "llama-3.1-8b", {"lora_rank": 16}, "adapter.rank", ""),
        ("gpt-fast", "llama-3.1-8b", {"max_loras": 2}, "serving.max_loras", "not modelled"),
    ],
)  # fmt: skip
def test_what_an_engine_cannot_serve_is_refused_by_name(
    engine: str, name: str, asked: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InputError) as refused:
        accounted.infer(name, gpus="1xH100-80GB", engine=engine, max_model_len=512, **asked)
    problems = {problem.field: f"{problem.reason} {problem.hint}" for problem in refused.value.problems}
    assert words in problems[field]


def test_experts_over_ranks_go_with_adapters_since_a_release() -> None:
    shared = {"lora_rank": 16, "tp": 2, "ep": 2}
    assert room(served("qwen3-30b-a3b", "vllm", "2xH200", **shared)) > 0
    for more in ({"engine_version": "0.14.0"}, {"fully_sharded_loras": True}):
        with pytest.raises(InputError, match=r"mesh\.ep"):
            served("qwen3-30b-a3b", "vllm", "2xH200", **shared, **more)


def test_training_has_no_room_for_served_adapters() -> None:
    with pytest.raises(InputError, match="max_loras"):
        accounted.train("llama-tiny", gpus="1xH100-80GB", seq_len=128, lora_rank=8, max_loras=2)


def test_the_screen_says_what_the_room_costs() -> None:
    answer = served("llama-3.1-70b", "vllm", "8xH100-80GB", lora_rank=64, max_loras=8)
    text = " ".join(render_answer(answer, Look()).split())
    assert "room for 8 adapters of rank 64" in text
    assert "mostly room for adapters" in text
    assert "Room for 8 LoRA adapters of rank 64 takes 5.7 GiB a GPU" in text
    assert "with --fully-sharded-loras both, which take 1.9 GiB" in text


# ---- transformers with peft, llama.cpp ---------------------------------------------------------------------


def loaded(answer: Answer, component: Component) -> int:
    return sum(
        i.largest.value for i in answer.sheets[0].items if i.component is component and "lora" in i.path
    )


def test_peft_keeps_unmerged_adapters_in_fp32() -> None:
    """peft v0.21.2 tuners/lora/layer.py:263, raised by autocast_adapter_dtype; its default targets are q_proj
    and v_proj.
    """
    pair = 32 * 16 * ((4096 + 4096) + (4096 + 1024))
    assert (
        loaded(served("llama-3.1-8b", "transformers", lora_rank=16, max_loras=3), Component.PARAMETERS)
        == 3 * 4 * pair
    )
    assert (
        loaded(served("llama-3.1-8b", "transformers", lora_rank=16, lora_dtype="bf16"), Component.PARAMETERS)
        == 2 * pair
    )


def test_a_branch_that_runs_beside_a_layer_takes_room_while_prompts_are_read() -> None:
    asked = {"max_model_len": 8192, "prompt_tokens": 8192}
    peaks = [
        served("llama-3.1-8b", "transformers", **asked, **more)
        .sheets[0]
        .of(Component.TEMPORARIES, instant=Instant.PREFILL)
        .value
        for more in (
            {},
            {"lora_rank": 16, "lora_targets": ("down_proj",)},
            {"lora_rank": 16, "lora_targets": ("all-linear",)},
        )
    ]
    assert peaks[0] <= peaks[1] <= peaks[2]
    assert peaks[2] > peaks[0]


def test_llama_cpp_loads_adapters_beside_the_layers_they_belong_to() -> None:
    """ggml-org/llama.cpp 0650ea8c src/llama-adapter.cpp: each pair in its base tensor's kind of buffer, f32
    as converted.
    """
    whole = served("llama-3.1-8b", "llama.cpp", lora_rank=16, max_loras=2, lora_targets=("q_proj", "v_proj"))
    pair = 16 * ((4096 + 4096) + (4096 + 1024)) * 4
    assert loaded(whole, Component.BUFFERS) == 2 * 32 * pair
    half = served(
        "llama-3.1-8b",
        "llama.cpp",
        lora_rank=16,
        max_loras=2,
        lora_targets=("q_proj", "v_proj"),
        gpu_layers=17,
    )
    plain = served("llama-3.1-8b", "llama.cpp", gpu_layers=17)
    assert loaded(half, Component.BUFFERS) == 2 * 16 * pair
    assert half.sheets[0].host_bytes - plain.sheets[0].host_bytes == 2 * 16 * pair


def test_two_devices_share_the_adapters_as_they_share_the_layers() -> None:
    alone = served("llama-3.1-8b", "llama.cpp", lora_rank=16)
    pair = served("llama-3.1-8b", "llama.cpp", "2xH100-80GB", lora_rank=16)
    sums = [
        sum(
            i.largest.value
            for s in a.sheets
            for i in s.items
            if ".lora_" in i.path and i.component is Component.BUFFERS
        )
        for a in (alone, pair)
    ]
    assert sums[0] == sums[1] > 0


@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
@pytest.mark.parametrize("more", [{}, {"lora_targets": ("q_proj",), "max_loras": 3}])
def test_their_plans_read_back_and_no_adapters_cost_nothing(engine: str, more: dict[str, Any]) -> None:
    answer = served("llama-tiny", engine, lora_rank=8, **more)
    document = plan_document(answer.plan, model="llama-tiny", cluster=answer.cluster)
    assert resolve_document(document, model("llama-tiny")) == answer.plan
    assert served("llama-tiny", engine, max_loras=0).sheets == served("llama-tiny", engine).sheets


@pytest.mark.parametrize(
    ("engine", "gpus", "asked", "field"),
    [
        ("transformers", "2xH100-80GB", {"lora_rank": 8, "tp": 2}, "mesh.tp"),
        ("transformers", "1xH100-80GB", {"max_loras": 2}, "adapter.rank"),
        ("transformers", "1xH100-80GB", {"lora_rank": 8, "max_cpu_loras": 4}, "serving.max_cpu_loras"),
        ("llama.cpp", "1xH100-80GB", {"max_loras": 2}, "adapter.rank"),
        ("llama.cpp", "1xH100-80GB", {"lora_rank": 8, "lora_targets": ("experts",)}, "adapter.targets"),
        ("llama.cpp", "1xH100-80GB", {"lora_rank": 8, "fully_sharded_loras": True}, "serving.fully_sharded_loras"),
    ],
)  # fmt: skip
def test_what_they_cannot_serve_is_refused_by_name(
    engine: str, gpus: str, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        accounted.infer("llama-tiny", gpus=gpus, engine=engine, max_model_len=512, **asked)
    assert field in {problem.field for problem in refused.value.problems}


def test_stages_have_the_pairs_of_their_own_layers() -> None:
    """The first has the embedding's, the last the head's; all together have the model's."""
    whole = served("llama-3.1-8b", "vllm", lora_rank=16)
    cut = served("llama-3.1-8b", "vllm", "4xH100-80GB", lora_rank=16, pp=4)
    rows = [
        sum(i.largest.value for i in sheet.items if i.path.endswith(".lora_stacked")) for sheet in cut.sheets
    ]
    assert sum(rows) == room(whole)
    assert [any(i.path == "lm_head.lora_stacked" for i in sheet.items) for sheet in cut.sheets] == [
        False,
        False,
        False,
        True,
    ]


def test_tables_of_places_are_as_long_as_a_batch() -> None:
    """vLLM v0.33.0 punica_base.py:133-155: 4 of tokens (5 before) and 3 of sequences in int64; twice 2 of
    tokens, and of slots, in int32.
    """
    for version, tables in (("0.33.0", 4), ("0.14.0", 5)):
        answer = served(
            "llama-tiny",
            "vllm",
            engine_version=version,
            lora_rank=16,
            max_loras=4,
            max_batched_tokens=8192,
            sequences=1024,
        )
        found = next(i.largest.value for i in answer.sheets[0].items if i.path == "lora_places")
        assert found == 8 * (tables * 8192 + 3 * 1024) + 2 * 4 * (2 * 8192 + 3 * 4 + 4)


def buffer_of(answer: Answer) -> tuple[int, int]:
    item = next(item for item in answer.sheets[0].items if item.path == "lora_buffer")
    return item.at[Instant.PREFILL].value, item.at[Instant.PREFILL].high


def test_what_stands_between_both_matrices_is_a_high_end() -> None:
    """vLLM v0.33.0 lora/punica_wrapper/punica_gpu.py:251: fp32 of (3, tokens, rank) of q, k and v; twice
    where a share is gathered.
    """
    asked: dict[str, Any] = {"lora_rank": 64, "max_batched_tokens": 2048}
    assert buffer_of(served("llama-3.1-8b", "vllm", **asked)) == (0, 4 * 3 * 2048 * 64)
    assert buffer_of(served("llama-3.1-8b", "vllm", "2xH100-80GB", **asked, fully_sharded_loras=True)) == (
        0,
        2 * 4 * 3 * 2048 * 64,
    )
    assert buffer_of(served("llama-3.1-8b", "sglang", **asked)) == (0, 2 * 3 * 2048 * 64)


def test_experts_sort_their_tokens_for_every_slot_on_new_cards() -> None:
    """lora/ops/triton_ops/fused_moe_lora_op.py:1559: (2, slots, rows, rank) from Hopper on; older releases
    make the result beside it.
    """
    asked: dict[str, Any] = {"lora_rank": 64, "max_loras": 4, "max_batched_tokens": 2048}
    routed, rows = 2048 * 8, 2048 * 8 + 128 * 63
    new, old = (
        buffer_of(served("qwen3-30b-a3b", "vllm", gpus, **asked))[1] for gpus in ("1xH200", "1xA100-80GB")
    )
    assert new == 4 * 4 * rows + 2 * 2 * 64 * 4 * rows
    assert old == 4 * 4 * rows + 2 * 2 * 64 * routed
    before = buffer_of(served("qwen3-30b-a3b", "vllm", "1xH200", **asked, engine_version="0.14.0"))[1]
    assert before == 4 * 4 * rows + 2 * routed * (2 * 64 + max(2 * 768, 2048))
    one = buffer_of(
        served("qwen3-30b-a3b", "sglang", "1xH200", lora_rank=64, max_loras=2, max_batched_tokens=2048)
    )[0]
    assert one == 2 * routed * (2 * 64 + max(2 * 768, 2048))


def test_a_pair_that_may_not_be_there_is_a_range_from_none() -> None:
    """Expected, and at its least, nothing; at its most the matrices and what they have to spare."""
    plan = served("llama-3.1-8b", "vllm", lora_rank=16).plan
    assert plan.served_adapters is not None
    pair = replace(next(pairs_of(model("llama-3.1-8b"), plan, NEWEST)), spare=10)
    size = 2 * plan.served_adapters.slots * pair.elements  # bf16
    more = 2 * plan.served_adapters.slots * pair.times * 10
    assert _pair_bytes(replace(pair, sure=True), plan.served_adapters) == Bytes(size, size, size + more)
    assert _pair_bytes(replace(pair, sure=False), plan.served_adapters) == Bytes(0, 0, size + more)
