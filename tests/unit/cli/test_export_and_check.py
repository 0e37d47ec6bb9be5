"""`memsheet export` and `memsheet check`: what stands on the screen, what is written, exit codes."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.cli.commands import EXPORT_FLAGS
from memsheet.exchange import written_formats

PLAN = {
    "schema": "memsheet/plan/1", "model": "llama-3.2-1b", "gpus": "8xA100-80GB", "task": "train", "engine": "deepspeed", "zero": 2,
    "seq_len": 2048, "microbatch": 1, "global_batch": 64,
}  # fmt: skip
ALL = "deepspeed,accelerate,torchrun,transformers,slurm,axolotl,llamafactory,skypilot,kubernetes"


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "asked.json"
    path.write_text(json.dumps(PLAN))
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    return code, *capsys.readouterr()


def test_a_folder_holds_the_files_the_plan_and_its_sheet(capsys: Any, plan: str, tmp_path: Path) -> None:
    code, out, _ = ask(capsys, "export", plan, "--to", ALL, "--out", str(tmp_path / "run"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert code == 0
    assert names == {
        "ds_config.json",
        "accelerate.yaml",
        "torchrun.sh",
        "training_args.yaml",
        "training_args.py",
        "slurm.sh",
        "plan.json",
        "sheet.json",
        "axolotl.yaml",
        "llamafactory.yaml",
        "skypilot.yaml",
        "kubernetes.yaml",
    }
    assert {Path(line).name for line in out.split()} == names
    assert "predicted for each GPU" in (tmp_path / "run/accelerate.yaml").read_text()


def test_what_was_exported_checks_as_it_was_planned(capsys: Any, plan: str, tmp_path: Path) -> None:
    ask(capsys, "export", plan, "--to", ALL, "--out", str(tmp_path / "run"))
    code, out, _ = ask(capsys, "check", str(tmp_path / "run"), "--json")
    found, sheet = json.loads(out), json.loads((tmp_path / "run/sheet.json").read_text())
    assert code == 0
    assert found["sheet"]["plan"] == sheet["plan"] == json.loads((tmp_path / "run/plan.json").read_text())
    assert found["sheet"]["ranks"] == sheet["ranks"]
    assert not any(mistake["rule"] in ("files-disagree", "unknown-key") for mistake in found["mistakes"])


def test_one_file_and_flags_come_to_the_same_bytes(capsys: Any, plan: str, tmp_path: Path) -> None:
    ask(capsys, "export", plan, "--to", "deepspeed", "--out", str(tmp_path / "run"))
    flags = ("--model", "llama-3.2-1b", "--gpus", "8xA100-80GB", "--seq-len", "2048", "--json")
    code, out, _ = ask(capsys, "check", str(tmp_path / "run/ds_config.json"), *flags)
    ranks = json.loads((tmp_path / "run/sheet.json").read_text())["ranks"]
    assert code == 0
    assert json.loads(out)["sheet"]["ranks"] == ranks


def test_files_that_are_there_stay_unless_forced(capsys: Any, plan: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/ds_config.json").write_text("mine")
    arguments = ("export", plan, "--to", "deepspeed", "--out", str(tmp_path / "run"))
    code, _, err = ask(capsys, *arguments)
    assert code == 2
    assert "--force" in err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["ds_config.json"]
    assert (tmp_path / "run/ds_config.json").read_text() == "mine"
    assert ask(capsys, *arguments, "--force")[0] == 0
    assert json.loads((tmp_path / "run/ds_config.json").read_text())["train_batch_size"] == 64


def test_one_format_without_a_folder_goes_to_stdout(capsys: Any, plan: str) -> None:
    assert json.loads(ask(capsys, "export", plan, "--to", "deepspeed")[1])["zero_optimization"]["stage"] == 2
    code, out, err = ask(capsys, "export", plan, "--to", ALL)
    assert (code, out) == (2, "")
    assert "--out" in err


@pytest.mark.parametrize(
    "wrapped", [{"plans": [{"plan": {**PLAN, "zero": 1}}, {"plan": PLAN}]}, {"plan": PLAN, "ranks": []}]
)
def test_plans_and_sheets_hold_plans(capsys: Any, monkeypatch: Any, wrapped: dict[str, Any]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(wrapped).encode())))
    pick = ("--pick", "2") if "plans" in wrapped else ()
    code, out, _ = ask(capsys, "export", "-", "--to", "deepspeed", *pick)
    assert code == 0
    assert json.loads(out)["zero_optimization"]["stage"] == 2


def test_another_engine_than_the_best_one_is_told(capsys: Any, monkeypatch: Any) -> None:
    best = {"plan": {**PLAN, "engine": "megatron", "zero": 1}, "step_time_s": {"value": 15.0}}
    own = {"plan": PLAN, "step_time_s": {"value": 16.6}}
    for document, word in (
        ({"plans": [best], "by_engine": {"deepspeed": own}}, "15 s"),
        ({"plans": [own], "by_engine": {"megatron": best}}, ""),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(document).encode())))
        code, out, err = ask(capsys, "export", "-", "--to", "deepspeed")
        assert (code, json.loads(out)["zero_optimization"]["stage"]) == (0, 2)
        assert word in err
        assert ("megatron does not run" in err) == bool(word)


@pytest.mark.parametrize(
    ("document", "more", "word"),
    [
        ({"plans": [{"plan": PLAN}]}, ("--pick", "3"), "none of the 1"), ({"plans": []}, (), "no plan fits"), ({"plan": 1}, (), "holds no plan"),
        (PLAN, ("--to", "excel"), "no format"), ({**PLAN, "engine": "fsdp2", "zero": 3}, (), "not what deepspeed runs"),
        ({**PLAN, "zero": 7}, (), "zero"), (PLAN, ("--pick", "2"), "there is one"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_says_why(
    capsys: Any, tmp_path: Path, document: Any, more: tuple[str, ...], word: str
) -> None:
    (tmp_path / "p.json").write_text(json.dumps(document))
    to = () if "--to" in more else ("--to", "deepspeed")
    code, out, err = ask(capsys, "export", str(tmp_path / "p.json"), *to, *more)
    assert (code, out) == (2, "")
    assert word in err


def test_a_file_that_does_not_fit_says_so(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(
        '{"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}'
    )
    code, out, _ = ask(
        capsys,
        "check",
        str(tmp_path / "d.json"),
        "--model",
        "llama-3-70b",
        "--gpus",
        "8xA100-80GB",
        "--seq-len",
        "4096",
    )
    assert code == 10
    assert out.startswith("DOES NOT FIT")


def test_a_file_that_does_not_start_ends_as_what_does_not_fit(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stagee": 1}}'
    )
    code, out, _ = ask(capsys, "check", str(tmp_path / "d.json"))
    assert code == 10
    assert out.startswith("DOES NOT START")
    assert "zero_optimization.stage?" in out


def test_the_cards_of_a_plan_are_as_many_as_the_files_start(capsys: Any, plan: str, tmp_path: Path) -> None:
    ask(capsys, "export", plan, "--to", "accelerate", "--out", str(tmp_path / "run"))
    path = tmp_path / "run/accelerate.yaml"
    path.write_text(path.read_text().replace("num_processes: 8", "num_processes: 4"))
    (tmp_path / "run/plan.json").write_text(json.dumps({**PLAN, "global_batch": 64}))
    found = json.loads(ask(capsys, "check", str(tmp_path / "run"), "--json")[1])
    assert found["sheet"]["device"]["count"] == 4


@pytest.mark.parametrize("arguments", [(), ("missing.json",), (".",)])
def test_nothing_to_check_is_refused(
    capsys: Any, tmp_path: Path, monkeypatch: Any, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = ask(capsys, "check", *arguments)
    assert (code, out) == (2, "")
    assert err


def test_names_in_files_do_not_reach_the_terminal(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(
        json.dumps({"zero_optimization": {"stage": 1}, "x\u001b[31m": "\u001b]0;t\u0007"})
    )
    _, out, _ = ask(capsys, "check", str(tmp_path / "d.json"))
    assert "\u001b" not in out
    assert "\u0007" not in out


def test_a_flag_that_takes_the_place_of_a_files_value_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ds_config.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 4}'
    )
    line = ["check", str(tmp_path / "ds_config.json"), "--model", "llama-tiny", "--gpus", "2xA100-80GB"]
    main([*line, "--seq-len", "512", "--microbatch", "4"])
    assert "in place of" not in capsys.readouterr().out
    main([*line, "--seq-len", "512", "--microbatch", "1"])
    assert "microbatch = 1, as the flag says, in place of 4" in " ".join(capsys.readouterr().out.split())


def test_a_format_that_is_read_alone_is_refused_with_those_that_are_written(capsys: Any, plan: str) -> None:
    for name in ("areal", "lmdeploy", "no-such"):
        code, out, err = ask(capsys, "export", plan, "--to", name)
        assert (code, out) == (2, "")
        hint = err.partition("one of ")[2].strip().split(", ")
        assert hint == written_formats()
        assert name not in hint


def test_help_and_guide_name_every_format_that_is_written() -> None:
    variants = {"torchtune-ppo", "torchtune-async", "torchtitan-toml"}  # of the format before the dash
    written = set(written_formats()) - variants
    (to,) = (flag for flag in EXPORT_FLAGS if flag.name == "to")
    assert set(re.findall(r"[a-z][\w.-]*[a-z]", to.words.partition(": ")[2])) == written
    guide = (Path(__file__).parents[3] / "docs/guides/export.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)^\| `([\w.-]+)` \| `", guide)) == written
