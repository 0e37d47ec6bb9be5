"""`memsheet job` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memsheet.cli import main
from memsheet.cli.commands import template_flags
from memsheet.jobs.templates import TEMPLATES, template_options
from memsheet.plan.options import TemplateOptions

LINE = ("job", "trl-grpo", "--model", "qwen3-4b", "--gpus", "1xH100-80GB", "--max-completion-length", "4096")


def test_a_template_says_which_phase_dies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--vllm", "colocate"]) == 10
    screen = capsys.readouterr().out
    assert "dies in update_actor" in screen
    assert "old_log_prob" in screen


def test_a_narrow_screen_cuts_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width, together in (("66", False), ("120", True)):
        monkeypatch.setenv("COLUMNS", width)
        main([*LINE, "--vllm", "colocate", "--beta", "0.1"])
        screen = capsys.readouterr().out
        header = next(line for line in screen.splitlines() if line.startswith("phase "))
        assert "…" not in screen
        assert "range" in header
        assert ("rollout" in header) == together  # else each role's part is a table of its own


def test_its_document_is_a_job_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    file = tmp_path / "job.json"
    file.write_text(json.dumps(document["job"]))
    assert main(["job", str(file), "--json"]) == 10
    assert json.loads(capsys.readouterr().out)["verdict"] == document["verdict"]


def test_what_json_prints_is_read_as_the_job_that_it_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LINE, "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    file = tmp_path / "sheet.json"
    file.write_text(json.dumps(document))
    assert main(["job", str(file), "--json"]) == 10
    assert json.loads(capsys.readouterr().out)["verdict"] == document["verdict"]


@pytest.mark.parametrize(
    ("name", "start"),
    [("verl", "python3 -m verl.trainer.main_ppo"), ("trl-dpo", "trl dpo "), ("trl_KTO", "trl kto "), ("trl-gspo", "trl grpo ")],
)  # fmt: skip
def test_a_program_without_a_template_is_told_how_it_is_asked_about(
    name: str, start: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["job", name, "--model", "qwen3-8b", "--gpus", "8xH100-80GB"]) == 2
    told = capsys.readouterr().err
    assert f"job = {name}: is no template" in told
    assert f"memsheet check --gpus 8xH100-80GB -- {start}" in told


def test_a_flag_is_never_broken_on_a_screen_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main([*LINE, "--vllm", "colocate"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    helps = lines[next(at for at, line in enumerate(lines) if line.startswith("What helps")) + 1 :]
    helps = helps[: helps.index("")]
    flags = [line.split("  ")[0] for line in helps if line[:1].strip()]
    assert "--per-device-train-batch-size 1" in flags
    assert all(flag.startswith("--") for flag in flags)


def test_flags_are_the_options_of_templates() -> None:
    assert set(TemplateOptions.__annotations__) == set(template_options())
    assert {flag.field for flag in template_flags()} == {
        name for one in TEMPLATES.values() for name in one.options
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("job", "trl-gspo"), "is no template and no file"),
        (("job", "trl-grpo"), "is missing"),
        ((*LINE, "--num-generations", "7"), "does not divide"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(words)) == 2
    assert told in capsys.readouterr().err


def test_nothing_may_die_where_every_range_has_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "wild_configs" / "or-dapo-llama3-8b.sh").read_text()
    file = tmp_path / "run.sh"
    for owner, code in (("OpenRLHF", 0), ("somebody", 11)):  # whose model is guessed by its name
        file.write_text(text.replace("name_or_path OpenRLHF/", f"name_or_path {owner}/"))
        assert main(["check", str(file), "--gpus", "8xH100-80GB"]) == code
        assert "may die" not in capsys.readouterr().out


def test_a_limit_of_a_template_is_asked_of_the_job_that_it_makes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["solve", "gpu-memory-utilization", "trl-grpo", "--gpus", "1xH100-80GB"]) == 2
    assert "memsheet job trl-grpo … --json > job.json" in " ".join(capsys.readouterr().err.split())
    assert main(["job", "trl-grpo", "--model", "Qwen/Qwen3-0.6B", "--gpus", "1xH100-80GB", "--json"]) in (
        0,
        11,
    )
    (tmp_path / "job.json").write_text(capsys.readouterr().out)
    assert main(["solve", "gpu-memory-utilization", str(tmp_path / "job.json")]) == 0
