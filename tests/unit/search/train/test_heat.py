"""What fits over two axes: every cell the same as weighing its plans one by one, and the axes as they are
asked for.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from memsheet.budget import Result
from memsheet.catalog import find_device, model_names
from memsheet.errors import InputError
from memsheet.formulas.step_time import quick_s
from memsheet.plan.device import cluster_of
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.search.train.axes import (
    MOST,
    Axis,
    axes_of,
    axis_questions,
    axis_with_values,
    shown_axis_values,
)
from memsheet.search.train.cloud import SIDE, time_memory_points
from memsheet.search.train.grid import account_plan_grid, result_masks
from memsheet.search.train.heat_map import BEST_FIRST, Shows, plan_heat_map
from memsheet.search.train.rank import rank_training_plans
from memsheet.search.train.space import space_of

TINY = read_model("llama-tiny", catalog=catalog_entry, names=model_names())
SMALL = read_model("llama-3.2-3b", catalog=catalog_entry, names=model_names())
FOUR = cluster_of(find_device("A100-80GB"), 4)
EIGHT = cluster_of(find_device("RTX4090"), 8)
ASKED = {"seq_len": 512, "global_batch": 8}
TIGHT = {"seq_len": 8192, "global_batch": 16}
"""Of the small model on small cards: some plans fit, some may, some do not."""


def every(space, read):
    """Cells of a grid, plan by plan: (verdict, high end, seconds where it fits)."""
    found = defaultdict(list)
    for one in (graded := account_plan_grid(space)).graded:
        masks = result_masks(one, graded.space)
        for row in range(len(one)):
            verdict = next(number for number, result in enumerate(BEST_FIRST) if masks[result][row])
            request = one.stratum.request_of(row)
            seconds = (
                float(quick_s(space.model, one.stratum.plan_of(row), space.cluster))
                if verdict == 0
                else np.inf
            )
            found[read(request)].append((verdict, int(np.asarray(one.device.high)[row]), seconds))
    return found


@pytest.mark.parametrize(
    ("axes", "read"),
    [
        ("tp,zero", lambda r: (r["mesh.tp"], r["zero"])),
        ("microbatch,recompute", lambda r: (r["microbatch"], r["recompute.mode"])),
        ("dp_shard,offload", lambda r: (r["mesh.dp_shard"], offload(r))),
    ],
)
def test_every_cell_is_the_best_of_its_plans(axes, read):
    request = {**TIGHT, "loss": "plain", "gradient_sync": "every", "mesh.cp": 1}
    plans = every(space_of(SMALL, EIGHT, {**request, "engine": "fsdp2"}), read)
    least, fastest = (
        plan_heat_map(SMALL, EIGHT, request, ("fsdp2",), axes_of(axes), shows=shows) for shows in Shows
    )
    assert set(least.cells) == set(fastest.cells) == set(plans)
    for place, rows in plans.items():
        best = min(verdict for verdict, _, _ in rows)
        for found in (least.cells[place], fastest.cells[place]):
            assert found.result is BEST_FIRST[best]
            assert (found.plans, found.fit) == (len(rows), sum(verdict == 0 for verdict, _, _ in rows))
        assert least.cells[place].device.high == min(high for verdict, high, _ in rows if verdict == best)
        assert least.cells[place].seconds is None
        quickest = min(seconds for _, _, seconds in rows)
        assert fastest.cells[place].seconds == (
            pytest.approx(quickest, rel=1e-9) if np.isfinite(quickest) else None
        )
    assert len({cell.result for cell in least.cells.values()}) > 1  # else nothing would be told apart


def offload(request) -> str:
    return (
        " + ".join(key for key in ("optimizer", "parameters", "activations") if request.get(f"offload.{key}"))
        or "none"
    )


@pytest.mark.slow
def test_a_quantity_of_the_question_is_asked_anew():
    found = plan_heat_map(TINY, FOUR, ASKED, ("fsdp2", "megatron"), axes_of("seq_len=256:512,gpus=2:4"))
    assert (found.across.values, found.down.values) == ((256, 512), (2, 4))
    for length, gpus in found.cells:
        alone = [
            account_plan_grid(
                space_of(TINY, cluster_of(FOUR.device, gpus), {**ASKED, "seq_len": length, "engine": e})
            )
            for e in ("fsdp2", "megatron")
        ]
        cell = found.cells[length, gpus]
        assert cell.plans == sum(one.plans for one in alone)
        assert cell.device.high == min(
            int(np.asarray(one.device.high).min()) for each in alone for one in each.graded
        )


@pytest.mark.slow
def test_the_engine_may_be_an_axis():
    found = plan_heat_map(TINY, FOUR, ASKED, ("fsdp2", "megatron"), axes_of("engine,pp"))
    assert found.across.values == ("fsdp2", "megatron")
    assert ("fsdp2", 2) not in found.cells
    assert found.cells["megatron", 2].engine == "megatron"


def test_host_memory_that_is_short_is_told():
    poor = cluster_of(EIGHT.device, 8, host_bytes=2**30)
    found = plan_heat_map(SMALL, poor, TIGHT, ("fsdp2",), axes_of("offload,zero"))
    moved = found.cells["optimizer + parameters", 3]
    assert moved.host_short
    assert moved.result is Result.DOES_NOT_FIT
    assert not found.cells["none", 3].host_short


def test_an_engine_that_cannot_is_left_out_and_said():
    found = plan_heat_map(
        TINY,
        FOUR,
        {**ASKED, "schedule": "interleaved", "mesh.pp": 2, "mesh.vpp": 2},
        ("megatron", "fsdp2"),
        axes_of("tp,microbatch"),
    )
    assert {cell.engine for cell in found.cells.values()} == {"megatron"}


# axes


def test_axes_with_and_without_values():
    assert axes_of("seq-len, microbatch") == (Axis(name="seq_len"), Axis(name="microbatch"))
    assert axes_of("seq_len=4096:8192:4096,zero=3") == (
        Axis(name="seq_len", values=(4096, 8192)),
        Axis(name="zero", values=(3,)),
    )
    assert axes_of("recompute=none:full,tp") == (
        Axis(name="recompute", values=("none", "full")),
        Axis(name="tp"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "does not name two axes"), ("tp", "does not name two axes"), ("tp,pp,zero", "does not name two axes"), ("tp,tp", "names one axis twice"),
        ("tp,seqlen", "did you mean seq_len"), ("tp,\x1b[31m", "is no axis"), ("seq_len=0:8,tp", "is outside 1 to"), ("seq_len=many,tp", "is outside 1 to"),
        ("gpus=9999999999,tp", "is outside 1 to"), ("seq_len=" + ":".join(map(str, range(1, 99))) + ",tp", f"more than {MOST} values"),
        ("seq_len=" + "9" * 5000 + ",tp", "is outside"), ("x,y", "is no axis"),
    ],
)  # fmt: skip
def test_axes_that_are_none(text, said):
    with pytest.raises(InputError, match=said) as caught:
        axes_of(text)
    assert all(line.isprintable() for problem in caught.value.problems for line in str(problem).split("\n"))


def test_what_a_flag_has_settled_cannot_vary():
    with pytest.raises(InputError) as caught:
        plan_heat_map(
            TINY, FOUR, {**ASKED, "mesh.tp": 2, "recompute.mode": "full"}, ("fsdp2",), axes_of("tp,recompute")
        )
    assert [problem.value for problem in caught.value.problems] == ["tp", "recompute"]
    with pytest.raises(InputError, match="settled"):
        plan_heat_map(TINY, FOUR, {**ASKED, "offload.optimizer": 1}, ("fsdp2",), axes_of("tp,offload"))


def test_where_no_cell_has_a_legal_plan_the_reason_is_raised():
    with pytest.raises(InputError, match="no legal plan in any cell: optimizer"):
        plan_heat_map(TINY, FOUR, {**ASKED, "optimizer.name": "nonsense"}, ("fsdp2",), axes_of("tp,zero"))
    with pytest.raises(InputError, match="fill whole nodes"):
        plan_heat_map(TINY, cluster_of(FOUR.device, 16), ASKED, ("fsdp2",), axes_of("gpus=12,zero"))


def test_values_around_what_is_asked():
    assert axis_with_values(Axis(name="seq_len"), ASKED, FOUR).values == (128, 256, 512, 1024, 2048, 4096)
    assert axis_with_values(Axis(name="gpus"), ASKED, cluster_of(FOUR.device, 24)).values == (
        6,
        24,
        48,
        96,
        192,
    )  # no 12: half a node more
    assert axis_with_values(Axis(name="tp"), ASKED, FOUR).values == ()


def test_more_gpus_than_a_part_of_a_node_are_whole_nodes():
    four, sixteen = (one.cluster for one in axis_questions(axes_of("gpus=4:16,tp"), ASKED, FOUR))
    assert (four.per_node, four.nodes) == (4, 1)
    assert (sixteen.per_node, sixteen.nodes) == (8, 2)


def test_many_values_are_thinned():
    few = shown_axis_values(Axis(name="microbatch"), range(1, 100))
    assert few == (1, 2, 4, 8, 16, 32, 64)
    odd = shown_axis_values(Axis(name="microbatch"), [3**n for n in range(1, 30)])
    assert len(odd) == MOST
    assert (odd[0], odd[-1]) == (3, 3**29)
    assert shown_axis_values(Axis(name="recompute"), ["full", "none", "selective"]) == (
        "none",
        "selective",
        "full",
    )


# all plans as points


def test_a_cloud_is_thinned_to_points_of_its_own():
    random = np.random.default_rng(0)
    seconds, sizes = random.lognormal(size=20_000), random.integers(1, 2**40, 20_000)
    seconds[:10] = np.inf
    points = time_memory_points([(seconds[:7000], sizes[:7000]), (seconds[7000:], sizes[7000:])])
    assert set(points) <= set(zip(seconds.tolist(), sizes.tolist(), strict=True))
    assert len(points) == len(set(points)) <= (SIDE + 1) ** 2
    assert max(time for time, _ in points) == seconds[10:].max()
    assert points == tuple(sorted(points))


def test_a_cloud_of_few_and_of_none():
    assert time_memory_points([]) == ()
    assert time_memory_points([(np.array([np.inf]), np.array([5]))]) == ()
    assert time_memory_points([(np.array([2.0]), np.array([5]))]) == ((2.0, 5),)
    assert time_memory_points([(np.array([2.0, 2.0]), np.array([5, 5]))]) == ((2.0, 5),)


def test_a_ranking_keeps_its_cloud_above_its_front():
    found = rank_training_plans(TINY, FOUR, ASKED, ("fsdp2",), top=1)
    assert 0 < len(found.cloud) <= found.looked_at[Result.FITS]
    assert found.asked == ASKED
    for time, size in found.cloud:
        assert any(
            point.seconds <= time * (1 + 1e-12) and point.device_bytes <= size for point in found.front
        )
