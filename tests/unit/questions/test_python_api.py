"""The functions that Python code calls: typed, the same answers as the command line's, with plain forms."""

from __future__ import annotations

import importlib
import inspect
import json
import types
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.budget import Result
from memsheet.catalog import find_model
from memsheet.cli import main
from memsheet.plan import options
from memsheet.plan.names import SHORT
from memsheet.plan.options import InferOptions, JobOptions, TrainOptions
from memsheet.questions import accounted, question_parts
from memsheet.questions.question_parts import MOST_MODELS

FOLDERS = ("memsheet.trace", "memsheet.measure", "memsheet.questions.verification", "memsheet.trace.child")
ASKED = {"gpus": "8xH100-80GB", "engine": "fsdp2", "zero": 3, "seq_len": 4096}


def test_every_option_of_a_plan_is_a_typed_keyword() -> None:
    hints = typing.get_type_hints(InferOptions)
    assert set(hints) - set(typing.get_type_hints(JobOptions)) == {*SHORT, "offload"}
    assert set(typing.get_type_hints(TrainOptions)) < set(hints)


def test_public_functions_say_what_they_take() -> None:
    functions = [found for name in memsheet.__all__ if inspect.isfunction(found := getattr(memsheet, name))]
    assert len(functions) >= 12
    for function in functions:
        assert inspect.getdoc(function), function
        unannotated = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.annotation is inspect.Parameter.empty
        ]
        assert (function.__name__, unannotated) == (function.__name__, [])


PUBLIC = [found for name in memsheet.__all__ if inspect.isfunction(found := getattr(memsheet, name))]


@every(
    "function",
    [*PUBLIC, accounted.train, accounted.infer],
    ids=lambda function: f"{function.__module__}.{function.__name__}",
)
def test_no_public_function_takes_just_anything(function: typing.Any) -> None:
    """A keyword says what it takes, and those of a job are those of the one table of options."""
    said = SimpleNamespace(
        __annotations__={name: kind for name, kind in function.__annotations__.items() if name != "return"}
    )
    hints = typing.get_type_hints(said, globalns={**vars(options), **function.__globals__})
    for name, parameter in inspect.signature(function).parameters.items():
        is_union = typing.get_origin(hints[name]) in (typing.Union, types.UnionType, typing.Unpack)
        kinds = typing.get_args(hints[name]) if is_union else (hints[name],)
        assert typing.Any not in kinds, (function, name)
        assert object not in kinds, (function, name)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            assert typing.get_origin(hints[name]) is typing.Unpack
            assert issubclass(kinds[0], dict), (function, name)
            assert typing.Any not in typing.get_type_hints(kinds[0]).values()
            assert set(typing.get_type_hints(kinds[0])).isdisjoint(set(hints) - {name})


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_function_keeps_its_name_where_a_folder_has_it_too(folder: str) -> None:
    assert inspect.ismodule(importlib.import_module(folder))
    assert all(
        inspect.isfunction(getattr(memsheet, name))
        for name in ("trace", "measure", "verify", "plan", "explain")
    )


def test_an_answer_is_the_document_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    answer = memsheet.train("llama-3.1-8b", **ASKED)
    code = main(
        [
            "train",
            "llama-3.1-8b",
            *(f"--{key.replace('_', '-')}={value}" for key, value in ASKED.items()),
            "--json",
        ]
    )
    assert answer.to_dict() == json.loads(capsys.readouterr().out)
    assert (answer.verdict.result, code) == (memsheet.Result.FITS, 0)
    assert isinstance(answer, memsheet.Answer)


def test_rows_add_up_to_the_sheet() -> None:
    answer = memsheet.train("llama-3.1-8b", **ASKED)
    sheet = answer.sheets[0]
    rows = [
        row
        for row in answer.rows()
        if row["rank"] == sheet.rank and row["instant"] == sheet.peak_instant.value
    ]
    assert sum(row["bytes"] for row in rows) == sheet.device.value
    assert json.loads(json.dumps(rows)) == rows


def test_an_answer_prints_short() -> None:
    answer = memsheet.train("llama-3.1-8b", **ASKED)
    assert "llama-3.1-8b on 8xH100-80GB, fsdp2: FITS" in repr(answer)
    assert (
        max(
            len(repr(value))
            for value in (answer, answer.sheets[0], memsheet.infer("llama-3.1-8b", max_model_len=4096))
        )
        < 160
    )


@pytest.mark.usefixtures("warm_children")
def test_a_step_is_traced_and_measured_by_one_name_each() -> None:
    traced = memsheet.trace("llama-tiny", seq_len=64, microbatch=1)
    assert traced.sheets[0].witness.value == "traced"
    assert traced.to_dict()["witness"] == "traced"


def test_solve_is_the_command_s_answer(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"gpus": "1xA100-80GB", "seq_len": 2048, "precision": "bf16-pure"}
    found = memsheet.solve("microbatch", "llama-3.2-1b", most=64, **asked)
    main(
        [
            "solve",
            "microbatch",
            "llama-3.2-1b",
            "--most=64",
            *(f"--{k.replace('_', '-')}={v}" for k, v in asked.items()),
            "--json",
        ]
    )
    assert json.loads(capsys.readouterr().out)["found"]["value"] == found.found.value
    assert memsheet.solve("gpus", "llama-3.1-8b", gpus="H100-80GB", seq_len=2048).found.value >= 1
    with pytest.raises(memsheet.InputError, match="is nothing that is solved for"):
        memsheet.solve("happiness", "llama-3.2-1b")


def test_compare_takes_answers_documents_and_files(tmp_path: Path) -> None:
    one, two = (memsheet.train("llama-3.2-1b", seq_len=n) for n in (1024, 2048))
    file = tmp_path / "two.json"
    file.write_text(json.dumps(two.to_dict()))
    of_answers, mixed = memsheet.compare(one, two), memsheet.compare(one.to_dict(), file)
    assert [pair.bytes for pair in of_answers.pairs] == [pair.bytes for pair in mixed.pairs] != []
    assert memsheet.compare(one, one, instant="backward").pairs[0].bytes == 0


def test_export_gives_the_files_and_writes_them_together(tmp_path: Path) -> None:
    answer = memsheet.train("llama-3.1-8b", **ASKED)
    files = memsheet.export(answer, "torchrun", out=tmp_path / "run")
    assert {"plan.json", "sheet.json"} < set(files)
    assert {file.name: file.read_text() for file in (tmp_path / "run").iterdir()} == files
    assert memsheet.export(tmp_path / "run" / "plan.json", ["torchrun"]) == files
    with pytest.raises(memsheet.InputError, match="is there already"):
        memsheet.export(answer, "torchrun", out=tmp_path / "run")


def test_check_is_the_command_s_answer(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "configs" / "deepspeed-lf-ds-z3-config.json"
    asked = {"model": "llama-3.1-8b", "gpus": "8xA100-80GB", "seq_len": 2048, "batch_size": 1}
    found = memsheet.check(file, **asked)
    main(
        [
            "check",
            str(file),
            *(f"--{key.replace('_', '-')}={value}" for key, value in asked.items()),
            "--json",
        ]
    )
    shown = json.loads(capsys.readouterr().out)
    assert found.answer.to_dict()["ranks"] == shown["sheet"]["ranks"]
    assert len(found.mistakes) == len(shown["mistakes"])


# ---- what is told by bounds, and what is kept of a question ---------------------------------------------


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("llama-3-8b", {"gpus": "8xA100-40GB", "engine": "deepspeed", "zero": 3}),
        ("llama-3-8b", {"gpus": "8xA100-40GB", "engine": "deepspeed", "zero": 3, "offload": "optimizer"}),
        ("llama-3-8b", {"gpus": "8xA100-40GB", "engine": "megatron", "tp": 2, "pp": 4, "global_batch": 16}),
        ("mixtral-8x7b", {"gpus": "16xH100-80GB", "engine": "megatron", "tp": 2, "ep": 4, "pp": 2, "global_batch": 16}),
    ],
)  # fmt: skip
def test_bounds_are_a_share_where_that_denies_and_played_elsewhere(model: str, asked: dict[str, Any]) -> None:
    results = set()
    for length in (1024, 8192, 16384, 65536):
        share, bounds = (
            memsheet.train(model, seq_len=length, fix=False, slack=slack, **asked)
            for slack in ("share", "bounds")
        )
        assert share.verdict is not None
        denied = share.verdict.result is Result.DOES_NOT_FIT
        results.add(denied)
        same = share if denied else memsheet.train(model, seq_len=length, fix=False, slack="replay", **asked)
        assert (bounds.sheets, bounds.verdict, bounds.notes) == (same.sheets, same.verdict, same.notes)
    assert results == {False, True}


def test_a_model_is_read_once_and_again_when_its_config_says_something_else(tmp_path: Path) -> None:
    config = {**(find_model("llama-3.2-1b") or {})["config"]}
    file = tmp_path / "config.json"

    def model_of(asked: Any) -> Any:
        return memsheet.train(asked, gpus="1xH100-80GB", seq_len=128, fix=False, slack="share").model

    file.write_text(json.dumps(config))
    first = model_of(file)
    assert model_of(file) is first
    assert model_of(config) is not first, "it came from elsewhere"
    file.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert (first.layers, model_of(file).layers) == (config["num_hidden_layers"], 3)
    for number in range(2 * MOST_MODELS):
        model_of({**config, "num_hidden_layers": 1 + number})
    assert len(question_parts._recent_models) <= MOST_MODELS
    for wrong in ({**config, "hidden_size": object()}, {**config, "hidden_size": True}):
        with pytest.raises(memsheet.InputError, match="hidden_size"):
            model_of(wrong)


def test_a_solution_prints_in_one_line() -> None:
    found = memsheet.solve("microbatch", "llama-tiny", gpus="1xA100-80GB", seq_len=512, most=4)
    assert repr(found) == "<memsheet solve microbatch llama-tiny: 4, FITS>"
