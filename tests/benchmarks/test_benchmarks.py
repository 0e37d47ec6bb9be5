"""The accuracy harness: what it compares, its arithmetic, its refusals and the shape of what it prints."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import accuracy  # noqa: E402
import speed  # noqa: E402
import speed_text  # noqa: E402
from accuracy_text import screen  # noqa: E402
from asking import Outcome, Row, metrics_of, run_case  # noqa: E402

CASES = {case["id"]: case for case in accuracy.load(BENCHMARKS / "data" / "cases.json")}
TINY = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
PARAMETERS = 2 * 1000 * 256 + 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 256
PLAN = {
    "task": "infer",
    "engine": "transformers",
    "phase": "load",
    "precision": {"parameters": "bf16", "compute": "bf16"},
}


def case(name="one", *, truth, plan=PLAN, **given):
    """A tiny model placed on no card in particular: its weights are all there is."""
    return {
        "id": name, "group": "tiny", "kind": "inference", "quality": "A", "model": "tiny", "config": TINY,
        "hardware": {"device": None, "count": 1}, "plan": plan, "truth": truth, "truth_scope": "per_device", "resolution_bytes": None,
        "unknown": [], **given,
    }  # fmt: skip


def test_an_error_is_predicted_less_measured_over_measured():
    (row,) = run_case(case(truth={"peak_allocated_bytes": PARAMETERS * 4})).rows
    assert (row.predicted, row.measured) == (PARAMETERS * 2, PARAMETERS * 4)
    assert row.error == -0.5
    assert not row.inside


def test_a_row_is_inside_when_what_rounds_to_the_printed_figure_is():
    printed = {"peak_allocated_bytes": PARAMETERS * 2 + 400}
    assert not run_case(case(truth=printed)).rows[0].inside
    assert run_case(case(truth=printed, resolution_bytes=1000)).rows[0].inside


@pytest.mark.parametrize(
    ("truth", "kind", "metrics"),
    [
        (
            {"peak_reserved_bytes": 2, "peak_allocated_bytes": 1},
            "train",
            ("peak_allocated_bytes", "peak_reserved_bytes"),
        ),
        ({"peak_bytes_unspecified": 2, "device_bytes": 1, "tokens_per_s": 3}, "inference", ("device_bytes",)),
        (
            {"weights_bytes": 2, "activation_bytes": 1, "kv_tokens": 3},
            "serve-capacity",
            ("weights_bytes", "kv_tokens"),
        ),
        ({"peak_allocated_bytes": 2, "step_time_s": 1}, "step-time", ("peak_allocated_bytes",)),
        ({"step_time_s": 1}, "step-time", ("step_time_s",)),
        ({"tokens_per_s": 2}, "inference", ("tokens_per_s",)),
        ({"fits": False}, "train", ("verdict",)),
    ],
)
def test_every_counter_has_a_row(truth, kind, metrics):
    assert metrics_of({"truth": truth, "kind": kind}) == metrics


def test_a_server_has_a_row_for_each_figure_it_prints():
    plan = {
        **{k: v for k, v in PLAN.items() if k != "phase"},
        "serving": {"max_model_len": 100, "max_sequences": 3, "kv_dtype": "bf16"},
    }
    kv = 4 * 2 * 2 * 64 * 2 * 100 * 3  # layers, keys and values, heads, width, bytes, tokens, sequences
    rows = run_case(
        case(truth={"weights_bytes": PARAMETERS * 2, "kv_cache_bytes": kv}, plan=plan, kind="serve-capacity")
    ).rows
    assert [(row.metric, row.error) for row in rows] == [("weights_bytes", 0), ("kv_cache_bytes", 0)]


def test_lists_of_ranks_are_compared_rank_by_rank():
    ranks = [PARAMETERS, PARAMETERS * 2]
    rows = run_case(
        case(truth={"peak_allocated_bytes": PARAMETERS * 2, "peak_allocated_by_rank_bytes": ranks})
    ).rows
    assert [(row.id, row.error) for row in rows] == [("one@rank0", 1.0), ("one@rank1", 0.0)]


def test_a_sum_over_devices_is_one():
    stages = {**PLAN, "mesh": {"pp": 2}}
    one, both = (
        run_case(case(truth={"peak_allocated_bytes": 1}, plan=stages, truth_scope=scope)).rows[0]
        for scope in ("per_device", "sum_over_devices")
    )
    assert one.predicted < both.predicted == PARAMETERS * 2


def test_the_printed_context_takes_the_place_of_ours():
    hardware = {"device": "a100-80-sxm", "count": 1, "context_bytes": 123}
    rows = run_case(case(truth={"device_bytes": PARAMETERS * 2}, hardware=hardware)).rows
    assert 123 <= rows[0].predicted - PARAMETERS * 2 < 123 + 2**24


@pytest.mark.parametrize(
    ("usable", "fits", "right"),
    [(1.0, True, True), (1.0, False, False), (0.0001, False, True), (0.0001, True, False)],
)
def test_verdicts_are_judged_against_the_usable_memory(usable, fits, right):
    """No card holds less than its context at the low end, nor more than 2 GiB at the high end here."""
    hardware = {"device": "a100-80-sxm", "count": 1, "usable_gib": usable * 3}
    assert run_case(case(truth={"fits": fits}, hardware=hardware)).verdict is right


def test_an_uncertain_verdict_is_neither():
    hardware = {"device": "a100-80-sxm", "count": 1, "usable_gib": 0.6}
    assert run_case(case(truth={"fits": True}, hardware=hardware)).verdict is None


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"engine": "torchtitan", "task": "infer"}, "engine torchtitan is not modelled for infer"),
        ({"engine": "nobody's", "task": "train"}, "engine nobody's is not modelled"),
        ({"engine": "fsdp2", "task": "infer"}, "engine fsdp2 is not modelled for infer"),
        ({"engine": "transformers", "task": "train"}, "seq_len is missing"),
        (
            {"engine": "transformers", "task": "infer", "phase": "load", "compile": True},
            "compile True is not modelled",
        ),
    ],
)
def test_refusals_have_short_reasons(plan, reason):
    outcome = run_case(case(truth={"peak_allocated_bytes": 1}, plan=plan))
    assert (outcome.refused, outcome.rows, outcome.verdict) == (reason, (), None)


def test_a_model_nobody_knows_is_refused_too():
    assert run_case(case(truth={"fits": True}, config={"model_type": "martian"})).refused.startswith(
        "model_type martian is not one"
    )


@pytest.mark.slow
def test_no_published_case_crashes_the_harness():
    """A defect of memsheet would come back as a refusal that says so; engines that are written later only
    change which cases run.
    """
    outcomes = [
        run_case(c) for c in CASES.values() if c["plan"]["engine"] in ("transformers", "litgpt", "vllm")
    ]
    assert [o.case["id"] for o in outcomes if o.refused and o.refused.startswith("defect")] == []
    assert all(bool(o.rows) or o.refused or o.metrics == ("verdict",) for o in outcomes)


def test_weights_of_an_unquantized_model_are_within_a_percent():
    (row,) = run_case(CASES["hf_bert-large_load"]).rows
    assert abs(row.error) < 0.01


def test_the_arithmetic_of_a_group():
    def outcome(name, predicted, group, *, quality="A", unknown=(), refused=None, verdict=None):
        row = Row(
            id=name,
            metric="device_bytes",
            predicted=predicted,
            low=0,
            high=predicted,
            measured=100,
            inside=predicted >= 100,
            suspect="",
        )
        asked = {
            "id": name,
            "group": group,
            "kind": "train",
            "quality": quality,
            "unknown": list(unknown),
            "plan": {},
        }
        return Outcome(
            case=asked,
            metrics=("device_bytes",),
            rows=() if refused else (row,),
            refused=refused,
            verdict=verdict,
        )

    outcomes = [
        outcome("a", 110, "g", verdict=True), outcome("b", 96, "g", verdict=False), outcome("c", 0, "g", refused="no"),
        outcome("d", 102, "h"), outcome("e", 200, "h", quality="B"), outcome("f", 300, "h", unknown=["plan"]),
    ]  # fmt: skip
    line = accuracy.document(outcomes)["groups"][0]
    assert line.pop("signed") == pytest.approx(0.03)
    assert line.pop("absolute") == pytest.approx(0.07)
    assert line == {
        "group": "g",
        "kind": "train",
        "quality": "A",
        "metric": "device_bytes",
        "cases": 3,
        "run": 2,
        "refused": {"no": 1},
        "worst": 0.1,
        "inside_range": 0.5,
        "verdicts_right": 1,
        "verdicts_wrong": 1,
    }
    whole = accuracy.overall(outcomes)["train"]
    assert whole["absolute"] == pytest.approx((0.07 + 0.02) / 2)
    assert (whole["groups"], whole["worst"], whole["coverage"]) == (2, 0.1, 0.8)
    assert whole["inside_range"] == pytest.approx((0.5 + 1) / 2)


def test_json_and_screen(tmp_path, capsys, monkeypatch):
    cases = [
        case("near", truth={"peak_allocated_bytes": PARAMETERS * 2, "fits": True}),
        case("far", truth={"peak_allocated_bytes": PARAMETERS}),
        case("died", truth={"fits": False}),
        case("other", truth={"peak_allocated_bytes": 1}, plan={"engine": "nanotron", "task": "infer"}),
    ]
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"schema": "memsheet/cases/1", "cases": cases}))
    assert accuracy.main(["--data", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"groups", "overall", "rows"} <= set(found)
    (group,) = found["groups"]
    assert set(group) == {
        "group",
        "kind",
        "quality",
        "metric",
        "cases",
        "run",
        "refused",
        "signed",
        "absolute",
        "worst",
        "inside_range",
        "verdicts_right",
        "verdicts_wrong",
    }
    assert (group["cases"], group["run"], group["refused"]) == (4, 3, {"engine nanotron is not modelled": 1})
    assert set(found["overall"]["inference"]) == {"groups", "absolute", "worst", "coverage", "inside_range"}
    assert [set(row) for row in found["rows"]] == [
        {"id", "engine", "metric", "predicted", "low", "high", "measured", "error"}
    ] * 2
    assert [row["id"] for row in found["beyond_bar"]] == ["far"]
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        text = screen(found, {"near": "tiny", "far": "tiny"})
        assert max(map(len, text.splitlines())) <= width
        assert "far: parameters at load" in text
    assert accuracy.main(["--data", str(file), "--markdown"]) == 0
    assert "| inference | tiny | A | allocated | 3/4 |" in capsys.readouterr().out


def test_other_files_are_refused_in_a_sentence(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(SystemExit, match="is not a file of schema"):
        accuracy.main(["--data", str(file)])
    with pytest.raises(SystemExit, match="no cases in group nowhere"):
        accuracy.main(["--group", "nowhere"])


def test_measured_sheets_are_cases_too(tmp_path):
    plan = {
        "task": "infer",
        "engine": "transformers",
        "phase": "load",
        "precision": {"parameters": "bf16", "compute": "bf16"},
    }
    sheet = {
        "schema": "memsheet/sheet/1", "witness": "measured", "model": {"name": "llama-tiny"}, "plan": plan, "device": None,
        "ranks": [{"rank": 0, "stage": 0, "allocated_bytes": 10}, {"rank": 1, "stage": 0, "allocated_bytes": 20}],
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(sheet))
    (tmp_path / "told.json").write_text(json.dumps({**sheet, "witness": "predicted"}))
    (found,) = accuracy.records(tmp_path)
    rows = accuracy.run_record(found).rows
    assert [(row.id, row.measured) for row in rows] == [("run@rank0", 10), ("run@rank1", 20)]
    assert rows[0].predicted == rows[1].predicted == 2 * 3_426_560


def test_processes_are_timed_and_failures_said():
    good, bad = (
        speed.process(code, code, [sys.executable, "-c", code], 1) for code in ("pass", "raise SystemExit(3)")
    )
    assert good.median_s > 0
    assert good.peak_bytes > 2**20
    assert bad.skipped == "exits with 3"
    assert speed.ratios([good, bad])["cold over bare python"] is None
    assert "not measured: exits with 3" in speed.screen([good, bad])


def test_bars_in_seconds_stand_in_bare_interpreters_too():
    missed = speed.BarTiming("missed", taken=4.0, wanted=2.0, in_bare=300.0)
    slower_machine = speed.BarTiming("slower machine", taken=4.0, wanted=2.0, in_bare=200.0)
    assert missed.wanted_in_bare(1.0) == 2.0 / speed.BARE_S
    page = speed_text.speed_page(
        {
            "runs": 1, "bare": 2 * speed.BARE_S, "commands": [("train", 9.0, 10.0)], "plans": [(missed, 8.0), (slower_machine, 8.0)],
            "questions": [slower_machine], "ratios": {}, "over peer": None,
        }
    )  # fmt: skip
    assert "| train | 9.0 | 10 |" in page
    assert "| missed | **4.0** | 2 | **300** | 206 | 8.0 |" in page
    assert "| slower machine | **4.0** | 2 | 200 | 206 | 8.0 |" in page
    assert "took 9.7 ms; where this page was made it\ntook 19.4 ms" in page
