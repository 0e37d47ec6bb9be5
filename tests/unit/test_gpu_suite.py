"""The suite of measurements: cases enough, each with a record of its own, resumed where it was left."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_suite

from memsheet.catalog import find_model


def test_cases_are_enough_and_their_models_bundled():
    cases = list(gpu_suite.cases(small=False))
    assert len({case.name for case in cases}) >= 60
    assert all(find_model(case.model) for case in [*cases, *gpu_suite.cases(small=True)])


def test_a_suite_goes_on_where_it_was_left_and_keeps_failures(tmp_path, monkeypatch):
    asked = []

    def measured(case, device):
        asked.append((case.name, device))
        return gpu_suite._record(case, 0.0, failure="it died\nand said why") if len(asked) == 1 else gpu_suite._record(case, 0.0, sheet={})

    monkeypatch.setattr(gpu_suite, "measured", measured)
    first = gpu_suite.run(1, tmp_path, "cpu", "128 autocast")
    record = next(first)
    assert "failed: it died" in gpu_suite.line(record)
    assert json.loads((tmp_path / f"{record['name']}.json").read_text()) == record
    rest = list(gpu_suite.run(1, tmp_path, "cpu", "128 autocast"))
    assert record["name"] not in {one["name"] for one in rest}
    assert len({name for name, _ in asked}) == len(asked) == len(rest) + 1
    assert not list(gpu_suite.run(0, tmp_path / "none", "cpu", ""))
