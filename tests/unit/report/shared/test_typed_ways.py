"""Whatever a screen offers to type can be typed on the line that it answers, and gives what was said: ways to
fit, rooms of servers, solved lines.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from memsheet.budget import Result
from memsheet.cli import main
from slow_cases import first_quick

MARKS = ("add  ", "replace  ", "leave out  ")
OTHERS_WORDS = (
    "--batch-size 4 --gradient-checkpointing false",
    "--per-device-train-batch-size 4 --gradient-accumulation-steps 2",
    "--micro-batch-size 2 --engine transformers",
    "--per-node 1 --lora-r 8 --bf16",
    "--engine trl --optim adamw_torch",
    "--engine axolotl --micro-batch-size 2",
)
TRAINED = tuple(f"llama-3.1-70b --gpus 1xRTX4090 --max-length 2048 {words}" for words in OTHERS_WORDS)


SERVED = (
    (
        "llama-3.1-70b --gpus 1xRTX4090 --engine transformers --dtype bfloat16 --max-length 1024 "
        "--prompt-tokens 1024"
    ),
    "llama-3.1-70b --gpus 1xRTX4090 --engine llama.cpp -c 4096 --quantize gguf:Q4_K_M",
    "qwen3-30b-a3b --gpus 1xRTX4070 --engine llama.cpp --quantize gguf:Q4_K_M --ctx-size 4096",
)
POOLS = (
    "llama-3.1-8b --gpus 1xA100-40GB --users 64 --max-model-len 32768",
    "llama-3.1-8b --gpus 1xH100-80GB --concurrency 128 --max-model-len 32768 --gpu-memory-utilization 0.9",
    "llama-3.1-70b --gpus 2xH100-80GB --tensor-parallel-size 2 --max-model-len 32768",
    "llama-3.1-70b --gpus 2xH100-80GB --max-num-seqs 64 --prompt-tokens 30000 --output-tokens 2000 --max-model-len 32768",
    "gpt-oss-120b --gpus 1xH100-80GB --engine-version 0.11.0 --max-num-seqs 512",
    "llama-3.1-70b --gpus 1xA100-80GB --quantization fp8 --enforce-eager --max-model-len 65536",
)  # fmt: skip
SOLVED = (
    "seq-len llama-3.1-70b --gpus 1xRTX4090 --batch-size 4 --gradient-checkpointing false",
    (
        "seq-len llama-3.1-8b --gpus 8xA100-40GB --gradient-checkpointing false --engine deepspeed "
        "--zero-stage 1"
    ),
    "seq-len llama-3.1-8b --gpus 1xA100-40GB --engine trl",
    (
        "microbatch llama-3.1-8b --gpus 8xA100-40GB --engine deepspeed --zero-stage 1 --max-length 4096 "
        "--gradient-checkpointing false"
    ),
    "max-model-len llama-3.1-70b --gpus 1xRTX4090 --engine transformers",
    "gpus llama-3.1-70b --gpus RTX4090 --max-length 4096 --most 2 --optim adamw_torch",
    "gpus llama-3.1-70b --gpus H100-80GB --engine fsdp2 --zero 3 --seq-len 4096",
)


def printed_changes(screen: str) -> Iterator[str]:
    """Every change that a screen offers to type, its lines joined."""
    lines = screen.splitlines()
    for at, line in enumerate(lines):
        text = line.removeprefix("To fit").strip()
        if not text.startswith(MARKS):
            continue
        for more in lines[at + 1 :]:
            if not more.startswith("        ") or more.lstrip().startswith(
                ("gives ", "together ", "the longest")
            ):
                break
            text += " " + more.strip()
        yield re.sub(r"\s+\(llama-server .*\)| · the least.*|  (gives|the longest) .*", "", text)


def as_changed(line: list[str], said: str) -> list[str]:
    """The line after what a screen says to add, to replace or to leave out."""
    verb = next(mark for mark in MARKS if said.startswith(mark))
    gone, _, new = (
        said.removeprefix(verb).partition(" by ")
        if verb == "replace  "
        else ("", "", said.removeprefix(verb))
    )
    if verb == "leave out  ":
        gone, new = new, ""
    left = line_of_switches(line)
    for group in re.split(r"\s(?=--)", gone):
        words = shlex.split(group)
        places = [at for at in range(len(left)) if left[at : at + len(words)] == words]
        assert places, (gone, line)
        del left[places[0] : places[0] + len(words)]
    return [*left, *shlex.split(new)]


def line_of_switches(line: list[str]) -> list[str]:
    """A line with ``--flag false`` as ``--no-flag``, and one-letter names as the long ones."""
    text = re.sub(r"--(\S+) false", r"--no-\1", shlex.join(line))
    return shlex.split(re.sub(r" -c ", " --ctx-size ", text))


def run(line: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    code = main([*line, "--json"])
    found = capsys.readouterr()
    assert code != 2, (line, found.err)
    return json.loads(found.out)


def offered(line: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    main(line)
    return list(printed_changes(capsys.readouterr().out))


@pytest.mark.parametrize(
    "asked", first_quick([*(f"infer {line}" for line in SERVED), *(f"train {line}" for line in TRAINED)], 4)
)
def test_a_way_to_fit_can_be_typed_as_it_is_printed(
    asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = asked.split()
    document, said = run(line, capsys), offered(line, capsys)
    ways = document.get("ways_to_fit") or [document["verdict"]["cheapest_fix"]]
    assert len(said) == len(ways) >= 1
    for way, change in zip(ways, said, strict=True):
        verdict = run(as_changed(line, change), capsys)["verdict"]
        assert (verdict["result"], verdict["device_bytes"]) == (Result.FITS.value, way["device_bytes"]), (
            asked,
            change,
        )


@pytest.mark.parametrize("asked", first_quick(POOLS, 2))
def test_what_makes_room_in_a_pool_can_be_typed_as_it_is_printed(
    asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    line = ["infer", *asked.split()]
    serving, said = run(line, capsys)["serving"], offered(line, capsys)
    ways = [one["changes"] for one in serving.get("makes_room", ()) if one["result"] == Result.FITS.value]
    enough = any("gpus" not in way and "quantization.weights" not in way for way in ways)
    ways = [way for way in ways if not (enough and "gpus" in way)]  # no card is bought without need
    sure = len(ways) + bool(serving.get("longest_that_fits"))
    sure += len(serving.get("asked", {}).get("holds_instead", ()))
    assert said
    found = [run(as_changed(line, change), capsys)["verdict"]["result"] for change in said]
    assert sum(one == Result.FITS.value for one in found) >= min(sure, len(said)), list(
        zip(said, found, strict=True)
    )


@pytest.mark.parametrize("asked", first_quick(SOLVED, 1))
def test_what_solving_offers_can_be_typed_as_it_is_printed(
    asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = ["solve", *asked.split()]
    document, said = run(line, capsys), offered(line, capsys)
    promised = document.get("ways_to_fit") or [document["cheapest_fix"]]
    assert len(said) == len(promised)
    for one, change in zip(promised, said, strict=True):
        found = run(as_changed(line, change), capsys)
        assert found["found"] is not None, (asked, change)
        if line[1] == "gpus":
            assert found["found"]["device_bytes"] == one["device_bytes"], (asked, change)
            assert str(one["changes"]["gpus"]).startswith(f"{found['found']['value']}x")


LIBRARIES = ("trl", "axolotl", "unsloth", "llama-factory", "hf")


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_helps_a_librarys_job_fits_with_what_it_holds_besides(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a library holds beside the sheet is weighed in each change as it is in the answer to the line that
    says it.
    """
    monkeypatch.setenv("COLUMNS", "120")
    met = 0
    for model, gpus in (
        ("llama-3.1-8b", "8xA100-40GB"),
        ("llama-3.2-1b", "2xL4"),
        ("llama-3.1-8b", "1xRTX4090"),
        ("llama-3.1-8b", "1xRTX4080"),
    ):
        line = ["train", model, "--gpus", gpus, "--seq-len", "4096", "--engine", library]
        document = run(line, capsys)
        fix = document["verdict"].get("cheapest_fix")
        main(line)
        block = (
            [
                part
                for part in capsys.readouterr().out.split("\n\n")
                if "\nadd  " in part or "\nreplace  " in part
            ]
            if fix
            else []
        )
        said = [" ".join(re.split(r"\n(?=add  |replace  )", part)[1].split()) for part in block]
        said = [re.sub("^(add|replace) ", r"\1  ", one) for one in said] if fix else offered(line, capsys)
        for one, change in zip([fix] if fix else document.get("ways_to_fit", ()), said, strict=True):
            verdict = run(as_changed(line, change), capsys)["verdict"]
            assert (verdict["result"], verdict["device_bytes"]) == (Result.FITS.value, one["device_bytes"]), (
                line,
                change,
            )
            met += 1
    assert met
