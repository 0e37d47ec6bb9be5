"""A plain model of the size that a name says stands in for one of which nothing else is known."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.catalog import find_model
from memsheet.catalog.sized_names import DENSE, ROUTED, nearest_plain_model, size_in_name
from memsheet.formulas.states.params import active_parameter_count, parameter_count
from memsheet.questions.named_models import model_of
from memsheet.questions.sized_models import sized_model

SIZES = {
    "someone/Foo-7B-chat": (7.0, 6.5, None),
    "a/Bar-1.5b": (1.5, 1.45, None),
    "a/Bar_350M": (0.35, 0.3495, None),
    "a/Bar-30B-A3B": (30.0, 29.5, 3.0),
    "a/Mix-8x7B": (56.0, 7.0, 14.0),
    "a/Bar-1_8B-chat": (1.8, 1.75, None),
    "cache/models--a--Bar-0_5b": (0.5, 0.45, None),
    "a/bar_1_8b": (8.0, 7.5, None),
    "a/bar-3_8b": (8.0, 7.5, None),
    "/ckpt/foo-13b/checkpoint-200": (13.0, 12.5, None),
}
UNSIZED = ("a/Foo", "a/Llama-4-Scout-17B-16E", "a/gemma-3n-E2B-it", "a/Foo-3bit", "a/Foo-12k")


@pytest.mark.parametrize("name", SIZES)
def test_a_name_says_its_size_as_far_as_it_is_rounded(name: str) -> None:
    size = size_in_name(name)
    assert size is not None
    assert (size.billions, size.least, size.active) == pytest.approx(SIZES[name], nan_ok=True)


@pytest.mark.parametrize("name", UNSIZED)
def test_other_numbers_in_a_name_are_no_size(name: str) -> None:
    assert size_in_name(name) is None
    assert sized_model(name) is None


@pytest.mark.parametrize("billions", [0.1, 0.45, 1.0, 2.2, 4.0, 7.0, 9.0, 20.0, 27.0, 40.0, 100.0, 405.0])
def test_the_stand_in_has_the_parameters_that_the_name_says(billions: float) -> None:
    found = sized_model(f"a/foo-{billions}b")
    assert found is not None
    layer = parameter_count(found.spec) / found.spec.layers
    assert abs(parameter_count(found.spec) - billions * 1e9) <= layer
    assert found.least_share <= 1.0


@pytest.mark.parametrize("name", [*DENSE, *ROUTED])
def test_the_table_of_plain_models_says_their_parameters(name: str) -> None:
    assert find_model(name) is not None
    spec = model_of(name)
    assert spec is not None
    told = ROUTED[name][:2] if name in ROUTED else (DENSE[name],)
    counts = (parameter_count(spec), active_parameter_count(spec))
    assert told == pytest.approx([count / 1e9 for count in counts[: len(told)]], rel=0.02)


def test_a_model_stands_in_for_itself() -> None:
    size = size_in_name("a/foo-8b")
    assert size is not None
    assert nearest_plain_model(size) == "llama-3.1-8b"


def test_an_unknown_model_has_a_sheet_and_no_sure_verdict(tmp_path: Path) -> None:
    text = "base_model: nobody/Foo-7B\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\n"
    (tmp_path / "a.yml").write_text(text)
    found = memsheet.check(tmp_path / "a.yml", gpus="8xH100-80GB")
    assert found.result is not None
    assert found.result.value == "uncertain"
    assert "nothing is known of nobody/Foo-7B but the size in its name" in found.doubt


def test_what_cannot_fit_by_its_states_alone_is_a_sure_no(tmp_path: Path) -> None:
    text = "base_model: nobody/Foo-70B\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\n"
    (tmp_path / "a.yml").write_text(text)
    found = memsheet.check(tmp_path / "a.yml", gpus="1xRTX4090")
    assert found.result is not None
    assert found.result.value == "does_not_fit"


def test_a_served_one_is_stored_as_its_name_says(tmp_path: Path) -> None:
    needs = []
    for name in ("nobody/Foo-34B", "nobody/Foo-34B-AWQ"):
        (tmp_path / "s.sh").write_text(f"vllm serve {name} --max-model-len 4096")
        found = memsheet.check(tmp_path / "s.sh", gpus="1xH100-80GB")
        assert found.answer is not None
        sheet = found.answer.sheets[0]
        needs.append(sheet.device.low)
        assert "nothing is known" in found.doubt
    assert needs[0] != needs[1]
