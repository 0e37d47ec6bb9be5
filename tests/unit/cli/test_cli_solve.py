"""`memsheet solve`: exit codes, what goes where, errors that say what to do, the chart as a file."""

import json
from dataclasses import replace

import pytest

from memsheet.catalog import find_device
from memsheet.cli import main
from memsheet.questions.solve import target_named
from memsheet.units import GIB

TINY = ("llama-tiny", "--gpus", "1xA100-80GB")


def ask(capsys, *arguments):
    code = main(("solve", *arguments))
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("seq-len", *TINY), 0, "FITS  sequences of up to 2,048 tokens"),
        (("seq_len", *TINY, "--most", "4096"), 0, "FITS  sequences of up to 4,096 tokens"),
        (
            ("microbatch", *TINY, "--seq-len", "2048", "--global-batch", "8"),
            0,
            "FITS  micro-batches of up to 8 sequences",
        ),
        (("gpus", "llama-tiny", "--gpus", "A100-80GB", "--seq-len", "128"), 0, "FITS  on 1 GPU and no fewer"),
        (("sequences", *TINY, "--max-model-len", "128", "--most", "9"), 0, "FITS  9 sequences at once"),
        (("max-model-len", *TINY), 0, "FITS  sequences of up to 2,048 tokens"),
        (("seq-len", "llama-3-8b", "--gpus", "1xA100-80GB"), 10, "NOTHING FITS  the least, 64 tokens"),
        (
            (
                "gpus",
                "llama-3-8b",
                "--gpus",
                "A100-40GB",
                "--seq-len",
                "64",
                "--engine",
                "transformers",
                "--zero",
                "0",
                "--most",
                "16",
            ),
            10,
            "NOTHING FITS",
        ),
    ],
)
def test_the_exit_code_says_whether_anything_fits(capsys, arguments, code, said):
    found, out, err = ask(capsys, *arguments)
    assert (found, err) == (code, "")
    assert out.startswith(said), out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ["WHAT"]),
        (
            ("speed", *TINY),
            [
                "is nothing that is solved for",
                "seq-len, microbatch, gpus, parameters, sequences, max-model-len",
            ],
        ),
        (("seq-len", "llama-tiny"), ["gpus: is missing"]),
        (("seq-len", "--gpus", "1xL4"), ["model: is missing"]),
        (("seq-len", *TINY, "--seq-len", "8"), ["seq_len = 8", "is what is solved for"]),
        (("microbatch", *TINY), ["seq_len", "is missing"]),
        (("microbatch", *TINY, "--seq-len", "64", "--microbatch", "2"), ["is what is solved for"]),
        (("gpus", *TINY, "--seq-len", "64"), ["has a count", "--gpus A100-80GB"]),
        (
            ("gpus", "llama-tiny", "--gpus", "L4", "--nodes", "2", "--seq-len", "64"),
            ["nodes = 2", "is what is solved for"],
        ),
        (("gpus", "llama-tiny", "--gpus", "L5000", "--seq-len", "64"), ["did you mean"]),
        (("gpus", "llama-tiny", "--gpus", "L4"), ["seq_len", "is missing"]),
        (("sequences", *TINY, "--max-model-len", "64", "--sequences", "2"), ["is what is solved for"]),
        (("seq-len", *TINY, "--most", "many"), ["most = many"]),
        (("seq-len", *TINY, "--tp", "x", "--zero", "9"), ["mesh.tp = x", "zero = 9"]),
        (("seq-len", *TINY, "--max-model-len", "9"), ["has no meaning in train"]),
        (("seq-len", *TINY, "--picture", "x.png"), ["belongs to `solve parameters`"]),
        (("seq-len", *TINY, "--parameters", "7e9"), ["nothing can be solved for it"]),
        (("parameters", "--gpus", "8xA100-80GB", "--most", "9"), ["most = 9"]),
        (("parameters", "--gpus", "8xA100-80GB", "--picture", "x.gif"), ["name it .svg or .png"]),
        (("parameters", "gpt2", "--gpus", "8xA100-80GB"), ["is no family that scales"]),
        (("parameters", "gpt2", "--model", "gpt2", "--gpus", "8xA100-80GB"), ["is named twice"]),
        (("seq-len", *TINY, "--untis", "GB"), ["did you mean --units?"]),
    ],
)
def test_bad_input_is_told_on_stderr_and_is_two(capsys, arguments, said):
    code, out, err = ask(capsys, *arguments)
    assert (code, out) == (2, "")
    assert all(words in err for words in said), err
    assert "Traceback" not in err


@pytest.mark.slow
def test_where_nothing_fits_the_change_that_helps_is_named(capsys):
    _, out, _ = ask(capsys, "seq-len", "llama-3-8b", "--gpus", "1xA100-80GB")
    told = " ".join(out.partition("To fit  ")[2].split("\n\n")[0].split())
    flags = told.split("add ")[1].split(" · ")[0].split()
    code, out, _ = ask(capsys, "seq-len", "llama-3-8b", "--gpus", "1xA100-80GB", *flags)
    assert code == 0
    assert out.startswith("FITS")


def test_what_only_may_fit_is_eleven(capsys, monkeypatch):
    """Of a card between the expected bytes and the high end of the range nobody can be sure."""
    card = find_device("A100-80GB")
    tight = replace(card, framework_bytes=GIB, framework_low_bytes=GIB, framework_high_bytes=GIB)
    monkeypatch.setattr("memsheet.questions.question_parts.find_device", lambda _: tight)
    code, out, _ = ask(capsys, "seq-len", *TINY)
    assert code == 11
    assert out.startswith("UNCERTAIN  sequences of up to 2,048 tokens may fit, nothing is sure to")


def test_json_is_one_object(capsys):
    code, out, err = ask(capsys, "seq-len", *TINY, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    document = json.loads(out)
    assert document["schema"] == "memsheet/solution/1"
    assert document["value"] == 2048
    assert document["next"] is None


def test_a_plan_file_asks_too_and_its_own_value_is_asked_for_anew(capsys, tmp_path):
    file = tmp_path / "plan.json"
    plan = {
        "schema": "memsheet/plan/1",
        "model": "llama-tiny",
        "gpus": "1xA100-80GB",
        "task": "train",
        "seq_len": 512,
        "microbatch": 3,
    }
    file.write_text(json.dumps(plan))
    code, out, _ = ask(capsys, "seq-len", "--plan", str(file), "--json")
    assert code == 0
    assert json.loads(out)["plan"]["microbatch"] == 3
    assert json.loads(out)["value"] == 2048
    file.write_text(json.dumps({**plan, "gpus": "A100-80GB"}))
    code, out, _ = ask(capsys, "gpus", "--plan", str(file), "--json")
    assert (code, json.loads(out)["value"]) == (0, 1)


def test_the_chart_is_drawn_and_said_in_bars(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "sizes.svg"
    arguments = (
        "parameters",
        "llama-tiny",
        "--gpus",
        "2xL4",
        "--engine",
        "deepspeed",
        "--zero",
        "3",
        "--seq-len",
        "512",
    )
    code, out, err = ask(capsys, *arguments, "--picture", str(file))
    assert (code, err) == (0, "")
    assert "Largest model that fits" in out
    drawn = file.read_text()
    assert all(name in drawn for name in ("ZeRO-3", "DDP", "What trains on L4"))


@pytest.mark.slow
def test_the_usual_length_is_taken_for_the_largest_model_and_shown(capsys):
    _, out, _ = ask(capsys, "parameters", "llama-tiny", "--gpus", "1xL4", "--json")
    document = json.loads(out)
    assert document["plan"]["seq_len"] == 4096
    assert "seq_len = 4096" in " ".join(document["assumed"])


@pytest.mark.parametrize("name", ["batch_size", "per_device_train_batch_size", "microbatch"])
def test_what_is_solved_for_may_be_called_as_trainers_call_it(name: str) -> None:
    assert target_named(name).value == "microbatch"
