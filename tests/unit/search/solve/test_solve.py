"""The largest that fits, by bisection: what trying every value gives, the next step that does not fit, and
laws that no search may break.
"""

import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

import answers
import memsheet
from memsheet import catalog
from memsheet.budget import Result
from memsheet.errors import InputError, input_error
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.device import Cluster
from memsheet.questions import accounted
from memsheet.readers.hf_config import read_hf_config
from memsheet.report.screen.solution import solution_headline
from memsheet.report.shared.look import Look
from memsheet.search import trials
from memsheet.search.fitting_edges import first_edge, fitting_edges
from memsheet.search.solve import sizes
from memsheet.search.solve import targets as solve
from memsheet.search.solve.family import family_of
from memsheet.search.solve.sizes import machines_up_to, trainable_sizes
from memsheet.search.trials import Question, Trials, account_trial, fitting_edge
from memsheet.units import GIB

TINY = answers.model("llama-tiny")


def small(gib: float, count: int = 1, per_node: int = 8, host_bytes: int | None = None) -> Cluster:
    """Cards so small that llama-tiny fills them."""
    size = int(gib * GIB)
    device = replace(
        catalog.find_device("A100-80GB"),
        framework_bytes=size,
        framework_low_bytes=size,
        framework_high_bytes=size,
    )
    return Cluster(
        device=device, per_node=min(count, per_node), nodes=max(1, count // per_node), host_bytes=host_bytes
    )


def fitting(values, ask) -> list[int]:
    """Every value that fits with its whole range, each accounted as a question is answered."""
    return [
        value
        for value in values
        if account_trial(value, ask(value), replays=True).verdict.result is Result.FITS
    ]


def asking(key: str, cluster: Cluster, **request):
    return lambda value: Question(
        model=TINY, request={"task": "train", **request, key: value}, cluster=cluster
    )


@pytest.mark.parametrize(
    "engine", [{"engine": "transformers"}, {"engine": "transformers", "recompute.mode": "full"}]
)
def test_the_longest_sequence_fits_and_the_next_one_does_not(engine):
    """What the allocator keeps does not grow evenly: a longer one may fit again, by little."""
    cluster = small(1.2)
    found = solve.solve_sequence_length(TINY, {"task": "train", **engine}, cluster, most=8192)
    every = fitting(range(64, 8193, 64), asking("seq_len", cluster, **engine))
    assert found.found is not None
    assert found.beyond is not None
    assert 0 < len(every) < 128
    assert found.found.value in every
    assert found.beyond.value == found.found.value + 64
    assert found.beyond.value not in every
    assert 0.9 * max(every) <= found.found.value <= max(every)
    assert len(found.tried) < 60


def test_the_largest_microbatch_is_what_trying_every_one_gives():
    cluster = small(2)
    found = solve.most_sequences(TINY, {"task": "train", "seq_len": 512}, cluster, most=64)
    every = fitting(range(1, 65), asking("microbatch", cluster, seq_len=512))
    assert found.found is not None
    assert 1 <= len(every) < 64
    assert found.found.value == max(every)
    assert found.found.verdict.result is Result.FITS
    assert found.found.replayed


def test_the_fewest_gpus_are_what_trying_every_count_gives():
    model, node, counts = answers.model("llama-3.2-1b"), small(14, 8), solve.cluster_sizes(8, 64)
    request = {"task": "train", "engine": "deepspeed", "zero": 3, "seq_len": 512}

    def fits(count):
        return account_trial(
            count,
            Question(model=model, request=request, cluster=solve.resize_cluster(node, count)),
            replays=True,
        )

    wanted = [count for count in counts if fits(count).verdict.result is Result.FITS]
    found = solve.solve_gpu_count(model, request, node.device, per_node=8, most=64)
    assert 0 < len(wanted) < len(counts)
    assert found.found is not None
    assert found.beyond is not None
    assert found.found.value == min(wanted)
    assert found.beyond.value == counts[counts.index(min(wanted)) - 1]


def test_the_answer_is_the_one_that_train_gives():
    cluster = answers.cluster("8xA100-80GB")
    request = {"task": "train", "engine": "fsdp2", "zero": 3}
    model = answers.model("llama-3.2-1b")
    found = solve.solve_sequence_length(model, request, cluster)
    assert found.found is not None
    assert found.beyond is not None
    for tried in (found.found, found.beyond):
        verdict = accounted.answer_for_model(
            model, {**request, "seq_len": tried.value}, cluster, fix=False
        ).verdict
        assert verdict == tried.verdict
    assert found.found.verdict.result is Result.FITS
    assert found.beyond.verdict.result is not Result.FITS
    assert found.expected is not None
    assert found.expected.value >= found.found.value


def test_more_gpus_never_shorten():
    """But for what the allocator leaves in pieces: by no more than one length."""
    request = {"task": "train", "engine": "deepspeed", "zero": 3, "mesh.dp_replicate": 1}
    lengths = [_longest(request, small(4, count)) for count in (2, 4, 8, 16)]
    assert all(later >= earlier - 64 for earlier, later in pairwise(lengths))
    assert lengths[0] > 0


def test_more_memory_never_shortens_and_makes_longer_in_the_end():
    lengths = [_longest({"task": "train"}, small(gib)) for gib in (1.1, 1.2, 1.4, 4)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


@pytest.mark.parametrize("engine", ["transformers", "deepspeed"])
def test_recompute_never_shortens(engine):
    cluster = small(1.2) if engine == "transformers" else small(4, 2)
    request = {"task": "train", "engine": engine}
    assert _longest({**request, "recompute.mode": "full"}, cluster) >= _longest(request, cluster) > 0


def _longest(request, cluster) -> int:
    found = solve.solve_sequence_length(TINY, request, cluster, most=2**13).found
    return 0 if found is None else found.value


def test_a_model_ends_with_its_positions_unless_asked_beyond():
    cluster = answers.cluster("1xA100-80GB")
    own = solve.solve_sequence_length(TINY, {"task": "train"}, cluster)
    assert own.found is not None
    assert (own.found.value, own.beyond) == (2048, None)
    assert "--most looks further" in own.notes[0]
    beyond = solve.solve_sequence_length(TINY, {"task": "train"}, cluster, most=4096)
    assert beyond.found is not None
    assert beyond.found.value == 4096
    assert "beyond the 2,048 positions" in beyond.notes[0]


def test_an_end_that_is_no_multiple_is_looked_at_too():
    found = solve.solve_sequence_length(
        TINY, {"task": "train"}, answers.cluster("1xA100-80GB"), most=100
    ).found
    assert found is not None
    assert found.value == 100


def test_learned_positions_end_where_they_end():
    found = solve.solve_sequence_length(
        answers.model("gpt2"), {"task": "train"}, answers.cluster("1xA100-80GB"), most=2048
    )
    assert found.found is not None
    assert found.found.value == 1024
    assert found.skipped[0].value == 1088
    assert "learned positions" in found.skipped[0].reason


def test_where_nothing_fits_the_least_is_shown():
    found = solve.solve_sequence_length(TINY, {"task": "train"}, small(0.3))
    assert (found.found, found.beyond, found.expected) == (None, None, None)
    assert found.least is not None
    assert found.least.value == 64
    assert found.least.verdict.result is Result.DOES_NOT_FIT


def test_host_memory_counts():
    """What is offloaded must have room in the host's memory, as in any answer."""
    request = {
        "task": "train",
        "engine": "deepspeed",
        "zero": 3,
        "offload.optimizer": 1,
        "offload.parameters": 1,
    }
    enough, short = (
        solve.solve_sequence_length(TINY, request, small(4, 2, host_bytes=size)) for size in (10 * GIB, 2**20)
    )
    assert enough.found is not None
    assert short.found is None
    assert short.least is not None
    assert short.least.verdict.host_short_bytes > 0


def test_a_global_batch_is_made_up_of_whole_microbatches():
    cluster = answers.cluster("8xA100-80GB")
    request = {"task": "train", "engine": "fsdp2", "zero": 3, "seq_len": 128, "global_batch": 96}
    found = solve.most_sequences(TINY, request, cluster)
    assert found.found is not None
    assert found.found.value == 12
    assert found.beyond is None


def test_counts_that_are_no_legal_plans_are_skipped_with_their_reason():
    """24 GPUs cannot share 32 sequences evenly: 16 are the next step below 32."""
    model = answers.model("llama-3.2-1b")
    request = {"task": "train", "engine": "deepspeed", "zero": 3, "seq_len": 512, "global_batch": 32}
    at_32 = account_trial(
        32,
        Question(model=model, request=request, cluster=solve.resize_cluster(small(80, 8), 32)),
        replays=True,
    )
    found = solve.solve_gpu_count(
        model, request, small(at_32.verdict.device.high / GIB + 0.001).device, per_node=8, most=64
    )
    assert found.found is not None
    assert found.beyond is not None
    assert (found.found.value, found.beyond.value) == (32, 16)
    assert [skipped.value for skipped in found.skipped] == [24]
    assert "global_batch" in found.skipped[0].reason


def test_need_that_falls_and_rises_again_hides_nothing(monkeypatch):
    """The least demanding end does not fit, the other does not, and something between them does."""
    spares = [-5] * 40 + [3, 4, 5] + [-1] * 8
    low, high = fitting_edge(made_up(monkeypatch, spares), spare_of)
    assert (low, high) == (42, 43)


def test_sizes_of_clusters():
    assert solve.cluster_sizes(8, 40) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert solve.cluster_sizes(6, 18) == (1, 2, 4, 6, 12, 18)
    assert solve.cluster_sizes(1, 3) == (1, 2, 3)
    assert solve.cluster_sizes(8, 5) == (1, 2, 4)
    assert solve.resize_cluster(small(2, 8), 4).per_node == 4
    assert solve.resize_cluster(small(2, 8), 24).nodes == 3
    with pytest.raises(InputError):
        solve.resize_cluster(small(2, 8), 12)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"engine": "nope"}, "engine"),
        ({"zero": 7}, "zero"),
        ({"recompute.mode": "sometimes"}, "recompute.mode"),
        ({"microbatch": "x"}, "microbatch"),
        ({"mesh.tp": 3}, "mesh.tp"),
    ],
)
def test_bad_input_is_one_clear_error(request_, said):
    with pytest.raises(InputError, match=said.replace(".", r"\.")):
        solve.solve_sequence_length(TINY, {"task": "train", **request_}, small(2))


def test_a_microbatch_needs_a_length_and_a_batch_that_is_a_number():
    for request in ({}, {"seq_len": 64, "global_batch": "x"}, {"seq_len": 64, "global_batch": 3}):
        with pytest.raises(InputError):
            solve.most_sequences(TINY, {"task": "train", **request}, small(2, 2))


@pytest.mark.parametrize(
    ("key", "search", "most"),
    [
        ("serving.max_sequences", solve.most_sequences, 64),
        ("serving.max_model_len", solve.solve_sequence_length, 8192),
    ],
)
def test_serving_is_solved_for_too(key, search, most):
    given = {"serving.max_model_len": 2048, "serving.max_sequences": 8}
    request = {
        "task": "infer",
        "engine": "transformers",
        **{other: size for other, size in given.items() if other != key},
    }
    cluster = small(1.2)
    found = search(TINY, request, cluster, most=most)
    step = 64 if key.endswith("len") else 1
    every = fitting(
        range(step, most + 1, step),
        lambda value: Question(model=TINY, request={**request, key: value}, cluster=cluster),
    )
    assert found.found is not None
    assert found.beyond is not None
    assert found.target.key == key
    assert found.found.value == max(every) < most
    assert found.beyond.value == max(every) + step
    assert any("--prompt-tokens" in note for note in found.notes)


# ---- the search itself, on made-up needs


def made_up(monkeypatch, spares: list[int | None], replayed: list[int | None] | None = None) -> Trials:
    """Trials whose values have those bytes to spare; None is not legal."""

    def fake(value, _, *, replays):
        spare = (replayed if replays and replayed else spares)[value]
        if spare is None:
            raise input_error("value", value, "is not legal")
        return SimpleNamespace(spare_bytes=spare, value=value)

    monkeypatch.setattr(trials, "account_trial", fake)
    monkeypatch.setattr(trials, "Tried", SimpleNamespace)
    return Trials(values=range(len(spares)), asks=lambda _: None)


def spare_of(tried) -> int:
    return tried.spare_bytes


def holds(found, spares: list[int | None]) -> None:
    """The last one fits, the next legal one does not, and there is nothing legal between."""
    low, high = found
    legal = [index for index, spare in enumerate(spares) if spare is not None]
    if low is not None:
        assert spares[low] >= 0
    if high is not None:
        assert spares[high] < 0
    if low is not None and high is not None:
        assert not [index for index in legal if low < index < high]
    if high is None:
        assert low == legal[-1] or spares[legal[-1]] >= 0


@pytest.mark.parametrize("seed", range(60))
def test_the_edge_is_an_edge(monkeypatch, seed):
    """Of any need, monotone or not, with gaps or without."""
    dice = random.Random(seed)
    count, slope, rough = dice.randint(1, 80), dice.randint(1, 9), dice.choice((0, 0, 30))
    start, gaps = dice.randint(-20, slope * count), dice.choice((0.0, 0.0, 0.5))
    spares = [
        None if dice.random() < gaps else start - slope * i + dice.randint(-rough, rough)
        for i in range(count)
    ]
    if not any(spare is not None for spare in spares):
        spares[0] = 1
    found = fitting_edge(made_up(monkeypatch, spares), spare_of)
    holds(found, spares)
    if not rough:
        assert found[0] == max(
            (i for i, spare in enumerate(spares) if spare is not None and spare >= 0), default=None
        )


@pytest.mark.parametrize("seed", range(80))
def test_where_slack_is_not_even_what_was_tried_is_what_is_said(monkeypatch, seed):
    """Slack of any size at every value: each edge is one among all values, not only among those tried."""
    dice = random.Random(seed)
    count, slope = dice.randint(1, 300), dice.randint(1, 9)
    tensors = [dice.choice((3, 1)) * slope * count - slope * i for i in range(count)]
    likely = [spare - dice.randint(0, 40 * slope) for spare in tensors]
    sure = [spare - dice.choice((0, 10, 60)) * slope for spare in likely]
    legal = [dice.random() < 0.8 for _ in range(count)] if seed % 3 == 0 else [True] * count
    legal[dice.randrange(count)] = True
    made = uneven(monkeypatch, tensors, likely, sure, legal)
    assert first_edge(replace(made, known={})) == fitting_edges(made).found
    found = fitting_edges(made)
    tried = [index for index, _ in made.answered]
    fitting = [index for index in tried if sure[index] >= 0]
    assert (found.found is None) == (found.last_fitting is None) == (not fitting)
    if fitting:
        assert found.last_fitting == fitting[-1] >= found.found
        assert all(sure[index] >= 0 for index in tried if fitting[0] <= index <= found.found)
        for last in (found.found, found.last_fitting):
            after = next((index for index in range(last + 1, count) if legal[index]), None)
            assert after is None or (after in tried and sure[after] < 0)
        assert found.beyond == next((index for index in range(found.found + 1, count) if legal[index]), None)
    assert found.expected == max((index for index in tried if likely[index] >= 0), default=None)
    assert len(tried) < 70


def uneven(monkeypatch, tensors, likely, sure, legal) -> Trials:
    """Trials whose verdict is known after a replay alone: bytes that tensors, the expected bytes and the high
    end leave.
    """

    def fake(value, _, *, replays):
        if not legal[value]:
            raise input_error("value", value, "is not legal")
        return SimpleNamespace(
            value=value,
            as_answered=replays,
            spare_bytes=sure[value],
            expected_spare_bytes=likely[value],
            spare_with_slack=lambda percent: tensors[value] - percent * 2,
        )

    monkeypatch.setattr(trials, "account_trial", fake)
    monkeypatch.setattr(trials, "Tried", SimpleNamespace)
    return Trials(values=range(len(legal)), asks=lambda _: None)


def test_what_is_never_legal_is_said_in_its_shortest_form(monkeypatch):
    with pytest.raises(InputError, match="is not legal"):
        fitting_edge(made_up(monkeypatch, [None, None]), spare_of)


# ---- the family


def config_of(name: str) -> dict:
    found = catalog.find_model(name)
    assert found is not None
    return found["config"]


def test_a_family_contains_its_own_members():
    llama = family_of("llama-2-7b", config_of("llama-2-7b"))
    small_one, large_one = (read_hf_config(llama.of_layers(layers), name="x") for layers in (32, 40))
    assert parameter_count(small_one) == 6_738_415_616
    assert parameter_count(large_one) == parameter_count(answers.model("llama-2-13b")) == 13_015_864_320
    third = family_of("llama-3.1-8b", config_of("llama-3.1-8b"))
    assert third.of_layers(32) == config_of("llama-3.1-8b")


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "llama-3-70b", "qwen2.5-7b", "llama-tiny"])
def test_a_family_grows_with_its_layers(name):
    family = family_of(name, config_of(name))
    counts = [
        parameter_count(read_hf_config(family.of_layers(layers), name="x"))
        for layers in (1, 2, 3, 7, 24, 25, 60, 61, 512)
    ]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("name", "said"),
    [("gpt2", "hidden_size"), ("mixtral-8x7b", "num_local_experts"), ("gemma-3-4b", "num_hidden")],
)
def test_what_grows_in_no_one_ratio_is_refused_by_name(name, said):
    with pytest.raises(InputError, match=said):
        family_of(name, config_of(name))


def test_the_largest_model_and_its_chart():
    family = family_of("llama-tiny", config_of("llama-tiny"))
    cluster, request = small(7, 4), {"task": "train", "engine": "deepspeed", "zero": 3, "seq_len": 256}

    def build(layers):
        return read_hf_config(family.of_layers(layers), name=f"{layers} layers")

    found = solve.solve_model_size(build, request, cluster)
    assert found.found is not None
    assert found.beyond is not None
    assert found.beyond.value == found.found.value + 1
    curves = trainable_sizes(build, request, cluster, found.found)
    assert [curve.name for curve in curves] == ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    assert [curve.engine for curve in curves[1:]] == ["deepspeed"] * 3
    at_four = {curve.name: point.parameters for curve in curves for point in curve.points if point.gpus == 4}
    assert at_four["DDP"] < at_four["ZeRO-1"]
    assert at_four["ZeRO-3"] == parameter_count(found.found.model)
    # of few parameters on few GPUs a stage may gain less than its buffers take
    most = [curve.points[-1].parameters for curve in curves]
    assert most == sorted(most)
    for curve in curves[1:]:  # from two GPUs on, more of them never shrink what can be trained
        sizes = [point.parameters for point in curve.points[1:] if point.gpus != 4]
        assert sizes == sorted(sizes)


def test_a_chart_doubles_up_to_the_cluster_and_to_sixty_four_at_least():
    assert [machines.count for machines in machines_up_to(small(2, 24))] == [1, 2, 4, 8, 16, 24, 32, 64]
    assert [machines.count for machines in machines_up_to(small(2, 256))][-2:] == [128, 256]
    assert [machines.count for machines in machines_up_to(small(2, 2))] == [1, 2, 4, 8, 16, 32, 64]


def test_a_stage_that_cannot_run_says_why(monkeypatch):
    monkeypatch.setattr(sizes, "SEEN", 4)
    family = family_of("llama-tiny", config_of("llama-tiny"))
    request = {"task": "train", "engine": "fsdp2", "zero": 3, "seq_len": 256, "mesh.tp": 2}
    curves = trainable_sizes(
        lambda layers: read_hf_config(family.of_layers(layers), name="x"), request, small(2, 4), None
    )
    assert "mesh.tp" in curves[0].reason
    assert not any(point.parameters for point in curves[0].points)


@pytest.mark.parametrize(("what", "model"), [("seq-len", "llama-3.1-8b"), ("microbatch", "llama-3.1-8b")])
def test_what_recompute_would_let_fit_is_what_its_own_question_says(what, model):
    """Beside an answer of which nobody said what is recomputed; where somebody does, there is none."""
    asked = {"gpus": "1xH100-80GB", "lora_rank": 16, "quantize": "nf4"}
    asked |= {} if what == "seq-len" else {"seq_len": 2048}
    plain = memsheet.solve(what, model, **asked)
    said = memsheet.solve(what, model, **asked, recompute="full")
    assert plain.found is not None
    assert said.found is not None
    assert said.recomputed is None
    assert plain.recomputed is not None
    assert plain.recomputed.found is not None
    assert plain.recomputed.found.value == said.found.value > plain.found.value
    assert f"with --recompute full: {said.found.value:,}" in " ".join(solution_headline(plain, Look())[2])
