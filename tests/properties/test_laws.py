"""What must hold whatever the question: sums, orders and signs."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    CARDS,
    SERVED,
    TRAINED,
    attentions,
    cluster,
    law,
    lengths,
    microbatches,
    model,
    plan_of,
    ranks,
    requests,
    with_counts,
)

from memsheet.account import account_rank
from memsheet.budget import Result, budget_of, judge_sheets
from memsheet.formulas.pipeline import in_flight
from memsheet.formulas.sharding.flat_sizes import flat_shard
from memsheet.formulas.sharding.per_parameter_sizes import dim0_gathered, dim0_shard
from memsheet.formulas.states.held_shapes import elements_of, held_shape
from memsheet.formulas.states.params import parameter_count, parameter_tensors
from memsheet.plan.dtypes import BF16
from memsheet.plan.plan import Mesh, Schedule
from memsheet.questions.accounted import answer_for_model
from memsheet.sheet import (
    AGREEMENT_PER_MILLE,
    DESCRIBED,
    OUTSIDE_ALLOCATOR,
    OUTSIDE_TENSORS,
    STATES,
    Bytes,
    Component,
    Instant,
    Sheet,
    Witness,
    sum_byte_ranges,
)

Question = tuple[str, dict[str, Any]]
SAVED = Component.SAVED_ACTIVATIONS


def legal(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """A serving request as its family allows it: lengths within learned positions, eager attention where
    there is no sdpa.
    """
    if request.get("task") != "infer":
        return request
    ends = 1024 if name == "gpt2" else 2**26
    lengths_ = {
        k: min(v, ends)
        for k, v in request.items()
        if k in ("serving.max_model_len", "serving.prompt_tokens") and v is not None
    }
    eager = (
        {"attention": "eager"}
        if request.get("attention") == "sdpa" and name in ("gpt-oss-20b", "mamba-2.8b")
        else {}
    )
    return {**request, **lengths_, **eager}


def sheet_of(name: str, request: dict[str, Any], card: str | None = None, **counts: Any) -> Sheet:
    plan = with_counts(plan_of(name, legal(name, request)), **counts)
    return account_rank(model(name), plan, cluster(card, int(plan.mesh.gpus)) if card else None)


# ---- one sheet ---------------------------------------------------------------------------------------------


@law(80)
@given(requests(), st.sampled_from((None, *CARDS)))
def test_bytes_are_whole_and_never_negative_and_ranges_contain_their_value(
    question: Question, card: str | None
) -> None:
    for item in sheet_of(*question, card).items:
        for size in item.at.values():
            assert all(type(end) is int for end in (size.low, size.value, size.high)), item
            assert 0 <= size.low <= size.value <= size.high, item


@law()
@given(requests(), st.sampled_from((None, *CARDS)))
def test_items_of_an_instant_add_up_to_its_totals(question: Question, card: str | None) -> None:
    sheet = sheet_of(*question, card)
    for instant in sheet.instants:
        here = [(item.component, item.at[instant]) for item in sheet.items if instant in item.at]
        inside = [size for component, size in here if component not in OUTSIDE_TENSORS]
        assert sheet.at(instant).value == sum(size.value for size in inside)
        assert sheet.at(instant, without=()).value == sum(size.value for _, size in here)
        whole, margin = sheet.at(instant, without=()), margin_of(here)
        assert whole.low == min(sum(size.low for _, size in here), whole.value - margin)
        assert whole.high == max(sum(size.high for _, size in here), whole.value + margin)


def margin_of(parts: list[tuple[Component, Bytes]]) -> int:
    """What formulas may be wrong by in a sum of a training step."""
    described = sum(size.value for component, size in parts if component in DESCRIBED)
    return described * AGREEMENT_PER_MILLE // 1000


@law()
@given(requests(), st.sampled_from((None, *CARDS)))
def test_no_range_of_a_predicted_step_is_narrower_than_formulas_are_held_to(
    question: Question, card: str | None
) -> None:
    """Beside one of the same items, traced: the sums of their ends, which no margin widens."""
    sheet = sheet_of(*question, card)
    traced = replace(sheet, witness=Witness.TRACED)
    for instant in sheet.instants:
        for without in ((), OUTSIDE_ALLOCATOR, OUTSIDE_TENSORS):
            size, items = (each.at(instant, without=without) for each in (sheet, traced))
            parts = [(c, b) for c, b in sheet.sums()[instant].items() if c not in without and c in DESCRIBED]
            assert min(size.value - size.low, size.high - size.value) >= margin_of(parts)
            assert size in (items, items.with_margin(margin_of(parts)))
            assert items == sum_byte_ranges(b for c, b in sheet.sums()[instant].items() if c not in without)
    if card is not None:
        assert traced.device == sheet.device, "a search bounds plans by the items' own ends"


@law(30)
@given(st.sampled_from(SERVED), st.integers(2, 9000), st.sampled_from((None, *CARDS)))
def test_a_server_has_the_ranges_of_its_items(name: str, length: int, card: str | None) -> None:
    sheet = sheet_of(name, {"task": "infer", "serving.max_model_len": length}, card)
    for instant in sheet.instants:
        assert sheet.at(instant, without=()) == sum_byte_ranges(sheet.sums()[instant].values())


@law()
@given(requests(), st.sampled_from(CARDS))
def test_the_peak_is_the_largest_instant_and_the_three_totals_are_in_order(
    question: Question, card: str
) -> None:
    sheet = sheet_of(*question, card)
    assert sheet.allocated.value == max(sheet.at(instant).value for instant in sheet.instants)
    assert sheet.allocated.value <= sheet.reserved.value <= sheet.device.value
    assert sum(size.value for size in sheet.by(1).values()) == sheet.device.value


@law(30)
@given(requests())
def test_a_device_changes_nothing_that_is_a_tensor(question: Question) -> None:
    alone, on_card = sheet_of(*question), sheet_of(*question, "A100-80GB")
    tensors_of = [
        (i.component, i.path, i.at)
        for i in on_card.items
        if i.component not in (*OUTSIDE_TENSORS, Component.WORKSPACES)
    ]
    assert tensors_of == [(i.component, i.path, i.at) for i in alone.items]


# ---- shards ------------------------------------------------------------------------------------------------


@law(200)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=3), ranks)
def test_fsdp2_shards_cover_a_tensor_with_less_than_one_row_a_rank_of_padding(
    shape: list[int], n: int
) -> None:
    whole, row = prod(shape), prod(shape[1:])
    assert whole <= n * dim0_shard(tuple(shape), n) < whole + n * row
    assert dim0_gathered(tuple(shape), n) == n * dim0_shard(tuple(shape), n)


@law(200)
@given(st.integers(1, 10**12), ranks, st.sampled_from((1, 2, 128)))
def test_flat_shards_cover_a_buffer_with_less_than_one_alignment_a_rank_of_padding(
    elements: int, n: int, alignment: int
) -> None:
    assert elements <= n * flat_shard(elements, n, alignment) < elements + n * alignment


@law(40)
@given(
    st.sampled_from(SERVED),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 2, 4)),
)
def test_tensor_and_expert_parallel_ranks_cover_every_tensor(name: str, tp: int, ep: int, etp: int) -> None:
    for path, weight, _ in parameter_tensors(model(name)):
        routed = weight.role.value.startswith("expert")
        held = elements_of(held_shape(weight, Mesh(tp=tp, ep=ep, etp=etp)))
        copies = (ep if routed else 1) * ((etp if routed else tp) if weight.cut is not None else 1)
        whole = weight.elements // weight.copies
        assert whole <= held * copies, path
        assert held <= whole, path


@law(30)
@given(st.sampled_from(TRAINED), ranks, st.booleans())
def test_fsdp2_states_of_all_ranks_are_those_of_one_and_bounded_padding(
    name: str, n: int, pure: bool
) -> None:
    request = {
        "task": "train",
        "engine": "fsdp2",
        "seq_len": 8,
        "optimizer.name": "sgd_momentum",
        **({"precision.name": "bf16-pure"} if pure else {}),
    }
    one, shard = (
        sheet_of(name, request, dp_shard=k).of(*STATES, instant=Instant.OPTIMIZER_STEP).value for k in (1, n)
    )
    width = 2 if pure else 4
    padding = sum(3 * width * n * prod(w.shape[1:]) * times for _, w, times in parameter_tensors(model(name)))
    assert one == 3 * width * parameter_count(model(name))
    assert one <= n * shard <= one + padding


# ---- orders ------------------------------------------------------------------------------------------------


@law(30)
@given(st.sampled_from(TRAINED), st.integers(2, 64))
def test_sharding_more_never_takes_more(name: str, n: int) -> None:
    def states(request: dict[str, Any], **mesh: int) -> int:
        return (
            sheet_of(name, {"task": "train", "seq_len": 8, "precision.name": "fp32", **request}, **mesh)
            .of(*STATES, instant=Instant.OPTIMIZER_STEP)
            .value
        )

    replicated = states({"engine": "transformers"}, dp_replicate=n)
    two, three = (states({"engine": "fsdp2", "zero": zero}, dp_shard=n) for zero in (2, 3))
    assert three <= two <= replicated


@law(30)
@given(st.sampled_from(TRAINED), st.integers(2, 64))
def test_each_stage_of_zero_keeps_no_more_than_the_one_before(name: str, n: int) -> None:
    """In states, at every instant of DeepSpeed's step; the padding of single tensors (stage 3) is bounded by
    a row of ranks. The largest gradient may be on its way when one stage's backward is at its high-water
    mark, and gone when another's is.
    """
    request = {"task": "train", "engine": "deepspeed", "seq_len": 8}
    sheets = [
        sheet_of(name, {**request, "zero": zero}, **{"dp_shard" if zero else "dp_replicate": n})
        for zero in range(4)
    ]
    padding = 16 * n * sum(times for _, _, times in parameter_tensors(model(name)))
    on_its_way = {
        Instant.FORWARD: 0,
        Instant.BACKWARD: BF16.nbytes(
            max(elements_of(weight.shape) for _, weight, _ in parameter_tensors(model(name)))
        ),
    }
    for instant in (Instant.FORWARD, Instant.BACKWARD):
        kept = [sheet.of(*STATES, instant=instant).value for sheet in sheets]
        assert kept[1] <= kept[0], instant
        assert kept[2] <= kept[1] + on_its_way[instant], instant
        assert kept[3] <= kept[2] + padding + on_its_way[instant], instant


@law(30)
@given(st.sampled_from(TRAINED), st.integers(1, 64))
def test_zero_3_never_peaks_above_zero_2(name: str, n: int) -> None:
    two, three = (
        sheet_of(name, {"task": "train", "engine": "fsdp2", "zero": zero, "seq_len": 64}, dp_shard=n)
        for zero in (2, 3)
    )
    assert three.allocated.value <= two.allocated.value


def _bytes(sheet: Sheet, path: str, instant: Instant) -> Any:
    return sum(item.at[instant].value for item in sheet.items if item.path == path and instant in item.at)


@law()
@given(requests())
def test_recompute_saves_activations_and_every_setting_of_it_does(question: Question) -> None:
    name, request = question
    bare = {key: value for key, value in request.items() if not key.startswith("recompute.")}
    kept = sheet_of(name, bare)
    for recompute in ({"recompute.mode": "full"}, {"recompute.every": 3}, {"recompute.segments": 2}):
        less = sheet_of(name, {**bare, **recompute})
        for instant in (Instant.FORWARD, Instant.LOSS):
            masks = _bytes(
                less, "model/causal_mask", instant
            )  # a checkpoint's argument; without one no more than a temporary
            assert less.of(SAVED, instant=instant).value - masks <= kept.of(SAVED, instant=instant).value, (
                recompute,
                instant,
            )
            assert less.at(instant).value <= kept.at(instant).value, (recompute, instant)


@law()
@given(requests(), st.sampled_from(("microbatch", "seq_len")), st.integers(1, 300))
def test_more_sequences_or_longer_ones_never_take_less(question: Question, count: str, more: int) -> None:
    name, request = question
    request.pop("global_batch", None)
    small, large = sheet_of(name, request), sheet_of(name, {**request, count: request[count] + more})
    for instant in small.instants:
        assert small.at(instant).value <= large.at(instant).value, instant


@law(30)
@given(requests(), st.integers(1, 40))
def test_more_layers_never_take_less(question: Question, layers: int) -> None:
    """A Llama of n and of n + 1 layers, all else equal."""
    _, request = question
    assume("recompute.segments" not in request or layers >= request["recompute.segments"])
    shape = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 500, "max_position_embeddings": 4096, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    }  # fmt: skip
    from memsheet.readers.hf_config import read_hf_config

    small, large = (
        answer_for_model(read_hf_config({**shape, "num_hidden_layers": n}, name="n"), request, None).sheets[0]
        for n in (layers, layers + 1)
    )
    for instant in small.instants:
        assert small.at(instant).value <= large.at(instant).value, instant


@law()
@given(requests(), st.sampled_from(CARDS))
def test_a_bigger_card_never_turns_a_fit_into_a_misfit(question: Question, card: str) -> None:
    order = [Result.DOES_NOT_FIT, Result.UNCERTAIN, Result.FITS]
    larger = CARDS[CARDS.index(card) :]
    verdicts = [
        order.index(judge_sheets((sheet_of(*question, size),), budget_of(cluster(size, 1))).result)
        for size in larger
    ]
    # workspaces and context belong to a card, so the job itself is not quite the same on another
    assert verdicts == sorted(verdicts)


@law()
@given(st.sampled_from(list(Schedule)), st.integers(1, 16), st.integers(1, 64))
def test_earlier_stages_hold_at_least_as_many_micro_batches(
    schedule: Schedule, stages: int, microbatches_: int
) -> None:
    if schedule is Schedule.INTERLEAVED:
        return
    held = [in_flight(schedule, stages, stage, microbatches_) for stage in range(stages)]
    assert held == sorted(held, reverse=True)
    assert all(1 <= n <= microbatches_ for n in held)


# ---- serving -----------------------------------------------------------------------------------------------


@law(40)
@given(st.sampled_from(SERVED), st.integers(1, 40000), st.integers(1, 64), st.integers(0, 5000))
def test_caches_grow_with_length_and_in_proportion_to_sequences(
    name: str, length: int, sequences: int, more: int
) -> None:
    def cache(tokens: int, many: int) -> int:
        request = {"task": "infer", "serving.max_model_len": tokens, "serving.max_sequences": many}
        return sheet_of(name, request).of(Component.KV_CACHE, instant=Instant.DECODE).value

    assert cache(length, sequences) == sequences * cache(length, 1)
    assert cache(length, 1) <= cache(length + more, 1)


@law(40)
@given(
    st.sampled_from(SERVED),
    st.integers(1, 9000),
    st.integers(1, 9),
    attentions,
    st.sampled_from((None, 1, 100)),
)
def test_serving_sheets_are_whole_non_negative_and_ordered(
    name: str, length: int, sequences: int, attention: str, prompt: int | None
) -> None:
    request = {
        "task": "infer", "serving.max_model_len": length, "serving.max_sequences": sequences, "attention": attention, "serving.prompt_tokens": None if prompt is None else min(prompt, length),
    }  # fmt: skip
    for item in sheet_of(name, request, "H200-141GB").items:
        for size in item.at.values():
            assert all(type(end) is int for end in (size.low, size.value, size.high)), item
            assert 0 <= size.low <= size.value <= size.high, item


@law(60)
@given(st.sampled_from(SERVED), st.integers(2, 9000), st.integers(1, 9), st.floats(0, 1))
def test_the_range_of_unknown_prompts_contains_every_prompt(
    name: str, length: int, sequences: int, share: float
) -> None:
    request = {"task": "infer", "serving.max_model_len": length, "serving.max_sequences": sequences}
    prompt = max(1, int(share * length))
    unknown, known = sheet_of(name, request), sheet_of(name, {**request, "serving.prompt_tokens": prompt})
    assert unknown.allocated.low <= known.allocated.value <= unknown.allocated.high


@law(60)
@given(
    st.sampled_from(SERVED),
    st.integers(2, 9000),
    st.integers(1, 64),
    st.sampled_from((None, 1, 100)),
    st.sampled_from(CARDS),
)
def test_no_instant_of_serving_reaches_beyond_the_range_that_is_judged(
    name: str, length: int, sequences: int, prompt: int | None, card: str
) -> None:
    request = {"task": "infer", "serving.max_model_len": length, "serving.max_sequences": sequences}
    request["serving.prompt_tokens"] = None if prompt is None else min(prompt, length)
    sheet = sheet_of(name, request, card)
    assert sheet.device.high == max(sheet.at(instant, without=()).high for instant in sheet.instants)
    assert sheet.device.low <= sheet.device.value <= sheet.device.high


@law(60)
@given(requests(), st.sampled_from(CARDS))
def test_no_instant_of_training_reaches_beyond_the_range_that_is_judged(
    question: Question, card: str
) -> None:
    sheet = sheet_of(*question, card)
    assert sheet.device.high == max(sheet.at(instant, without=()).high for instant in sheet.instants)


@pytest.mark.slow
@law(1500)
@given(requests(), microbatches, lengths, st.sampled_from(CARDS))
def test_one_sheet_at_length(question: Question, microbatch: int, seq_len: int, card: str) -> None:
    name, request = question
    request.pop("global_batch", None)
    sheet = sheet_of(name, {**request, "microbatch": microbatch, "seq_len": seq_len}, card)
    assert all(
        0 <= b.low <= b.value <= b.high and type(b.value) is int
        for item in sheet.items
        for b in item.at.values()
    )
    assert sheet.allocated.value <= sheet.reserved.value <= sheet.device.value


@law(60)
@given(
    st.sampled_from(("llama-2-7b", "qwen2.5-7b", "llama-3.1-8b")), st.sampled_from(("transformers", "fsdp2")),
    st.sampled_from(("fsdp2-mixed", "bf16-pure")), st.booleans(), st.sampled_from((128, 512, 2048, 8192)), st.sampled_from((1, 2, 8)),
)  # fmt: skip
def test_what_a_checkpoint_keeps_is_saved_from_when_it_is_made(
    name: str, engine: str, precision: str, lora: bool, seq: int, batch: int
) -> None:
    """One input a layer, whatever is gathered beside it at the high-water mark: the next layer's too, before
    it runs.
    """
    sharded = {"engine": "fsdp2", "zero": 3, "mesh.dp_shard": 8, "precision.name": precision}
    where = sharded if engine == "fsdp2" else {"engine": "transformers", "precision.name": "bf16-pure"}
    adapter = {"adapter.rank": 16, "adapter.targets": ["q_proj", "v_proj"]} if lora else {}
    request = {
        "seq_len": seq,
        "microbatch": batch,
        "recompute.mode": "full",
        "attention": "sdpa",
        **where,
        **adapter,
    }
    spec, found = model(name), sheet_of(name, request)
    one, here = batch * seq * spec.hidden * 2, [item for item in found.items if Instant.FORWARD in item.at]
    saved = {item.path: int(item.at[Instant.FORWARD].value) for item in here if item.component is SAVED}
    layers = (
        sum(size for path, size in saved.items() if path.startswith(("model.embed", "model.layers"))) // one
    )
    assert layers in (1, spec.layers), "the embeddings' own, or one a layer"
    named = {item.path for item in here if item.component is Component.TEMPORARIES}
    assert not named & {"model.embed_tokens/output", "model.layers.*/input"}
