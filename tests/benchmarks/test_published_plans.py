"""Published plans are legal, fit, and are met by ours: benchmarks/published_plans.py on a few cases, and what
its words say.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from memsheet.catalog import find_device, find_model
from memsheet.plan.device import cluster_of
from memsheet.readers.hf_config import read_hf_config
from memsheet.search.train.space import Space, space_of
from memsheet.search.train.timed import planned_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import published_plans
from published_plans import DATA, GROUPS, Compared, chosen, compared, main, outside_of, screen, short, summary

FEW = (
    "korthikanti_tab5_22B_full",
    "korthikanti_tab5_22B_present_work",
    "torchtitan_2412_llama3.1-8b_8gpu_cp8_seq262144",
)
REFUSED = "mbridge_26.04.01_pre-training_llama-3-70b_64xgb300_nvfp4"


@cache
def rows() -> dict[str, Compared]:
    cases = [case for case in chosen(DATA, GROUPS) if case["id"] in (*FEW, REFUSED)]
    return {row.id: row for row in compared(cases)}


@pytest.mark.parametrize("name", FEW)
def test_a_published_plan_fits_and_ours_is_at_least_as_fast(name: str) -> None:
    row = rows()[name]
    assert row.holds
    assert row.ratio is not None
    assert 0.3 < row.ratio <= 1
    assert row.low_bytes <= row.device_bytes <= row.high_bytes
    assert row.plans > 50


def test_equal_questions_have_one_answer() -> None:
    full, selective = (rows()[name] for name in FEW[:2])
    assert (full.ours, full.our_seconds) == (selective.ours, selective.our_seconds)
    assert full.seconds > selective.seconds  # type: ignore[operator]


def test_what_is_refused_says_why() -> None:
    row = rows()[REFUSED]
    assert not row.legal
    assert not row.holds
    assert "nvfp4" in row.why
    assert row.ratio is None


def test_every_group_has_cases_and_every_row_a_line() -> None:
    cases = chosen(DATA, GROUPS)
    assert all(any(case["group"].startswith(name) for case in cases) for name in GROUPS)
    assert len(cases) == 60
    lines = list(screen([*rows().values()]))
    assert len(lines) == len(rows()) + 3
    assert summary([*rows().values()]) == {
        "cases": 4,
        "refused": 1,
        "fit": 3,
        "uncertain": 0,
        "do_not_fit": 0,
        "at_least_as_fast": 3,
        "within_3_percent": 0,
        "slower": 0,
    }


def test_json_is_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_plans, "compared", lambda _: iter(rows().values()))
    assert main(["--group", "korthikanti_tab5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {case["id"] for case in found["cases"]} == {*FEW, REFUSED}
    assert found["cases"][0].keys() >= {"verdict", "seconds", "our_seconds", "ratio", "holds", "why"}
    with pytest.raises(SystemExit, match="no cases"):
        main(["--group", "nobody"])


# the space --------------------------------------------------------------------------------------------------


def space(name: str, count: int, **asked: object) -> Space:
    found = find_model(name)
    assert found is not None
    model = read_hf_config(found["config"], name=name)
    return space_of(
        model,
        cluster_of(find_device("H100-80GB"), count),
        {"engine": "megatron", "seq_len": 8192, "global_batch": 1024, **asked},
    )


def test_ends_may_count_as_layers() -> None:
    """126 layers in 64 parts: two each, one next to the embeddings and one next to the head
    (arXiv:2407.21783, section 3.3.2).
    """
    parts = {
        (one["mesh.pp"], one["mesh.vpp"]): one.get("layers_per_stage")
        for one in space("llama-3.1-405b", 1024).pipelines
    }
    assert parts[8, 8] == (1, *[2] * 62, 1)
    assert parts[16, 4] == parts[8, 8]
    assert parts[2, 3] is None  # six parts of 21
    assert sum(parts[16, 2]) == 126  # type: ignore[arg-type]


def test_layers_that_nothing_divides_are_dealt_to_sixteen_parts_or_as_one_asks() -> None:
    dealt = [
        one["mesh.vpp"]
        for one in space("deepseek-v3", 256).pipelines
        if one["mesh.pp"] == 4 and "layers_per_stage" in one
    ]
    assert dealt == [1, 4]
    (asked,) = [one for one in space("deepseek-v3", 256, **{"mesh.vpp": 3}).pipelines if one["mesh.pp"] == 4]
    assert sorted(asked["layers_per_stage"]) == [5] * 11 + [6]


def test_what_a_space_lacks_is_named() -> None:
    here = space("llama-3.1-8b", 8)
    asked = {**here.request, "mesh.pp": 2, "mesh.dp_shard": 4, "schedule": "1f1b", "loss": "fused"}
    plain = planned_of(here.model, here.cluster, asked)
    assert list(outside_of(plain, here)) == []
    odd = planned_of(
        here.model,
        here.cluster,
        {**asked, "layers_per_stage": (15, 17), "recompute.mode": "full", "recompute.layers": 3},
    )
    assert list(outside_of(odd, here)) == ["layers dealt unevenly to 2 parts", "recompute of 3 layers"]
    assert "full/3" in short(odd.plan)
    assert short(replace(plain.plan, async_tp=True)) == "dp4 pp2 z1 mb1 async"
