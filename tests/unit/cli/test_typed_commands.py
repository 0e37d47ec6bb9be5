"""`memsheet check` of what is typed: a command behind ``--`` or as one word, and a text on stdin."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.questions.bare_counts import count_of

GPUS = ("--gpus", "2xH100-80GB", "--json")
COMMANDS = (
    "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 8192",
    "trl dpo --model_name_or_path Qwen/Qwen3-0.6B --max_length 1024 --per_device_train_batch_size 1",
    "accelerate launch --use_fsdp trl/scripts/sft.py --model_name_or_path Qwen/Qwen3-0.6B --max_length 1024",
)
SCRIPT = """from trl import SFTConfig, SFTTrainer
SFTTrainer(model="Qwen/Qwen3-0.6B", args=SFTConfig(max_length=1024), train_dataset=data).train()
"""
YAML = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: full\ncutoff_len: 1024\n"


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *words])
    return code, json.loads(capsys.readouterr().out)


def put_on_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def figures(found: dict[str, Any]) -> Any:
    return found["sheet"]["ranks"], found["sheet"]["verdict"]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_typed_command_is_its_script(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text(line)
    code, written = ask(capsys, str(tmp_path / "run.sh"), *GPUS)
    monkeypatch.chdir(tmp_path)
    for words in ((*GPUS, "--", *line.split()), (line, *GPUS)):
        assert (code, figures(written)) == ((again := ask(capsys, *words))[0], figures(again[1]))
    put_on_stdin(monkeypatch, line)
    again = ask(capsys, "-", *GPUS)
    assert (code, figures(written)) == (again[0], figures(again[1]))


@pytest.mark.parametrize(("text", "ending"), [(SCRIPT, "py"), (YAML, "yaml")])
def test_what_stands_on_stdin_is_read_by_what_it_holds(
    text: str,
    ending: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / f"job.{ending}").write_text(text)
    _, written = ask(capsys, str(tmp_path / f"job.{ending}"), *GPUS)
    put_on_stdin(monkeypatch, text)
    _, found = ask(capsys, "-", *GPUS)
    assert figures(found) == figures(written)


def test_a_typed_command_names_files_that_lie_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sft.yaml").write_text("model_name_or_path: Qwen/Qwen3-0.6B\nmax_length: 1024\n")
    monkeypatch.chdir(tmp_path)
    _, found = ask(capsys, *GPUS, "--", "trl", "sft", "--config", "sft.yaml")
    assert found["sheet"]["plan"]["seq_len"] == 1024


def test_a_typed_command_is_called_alike_in_every_run_beside_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\n")
    monkeypatch.chdir(tmp_path)
    said = [ask(capsys, "fsdp.yaml", *GPUS, "--", *COMMANDS[1].split())[1] for _ in range(2)]
    assert said[0] == said[1]


def test_files_behind_the_dashes_are_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "-odd name.sh").write_text(COMMANDS[0])
    monkeypatch.chdir(tmp_path)
    code, found = ask(capsys, *GPUS, "--", "-odd name.sh")
    assert code in (0, 10, 11)
    assert found["sheet"]["plan"]["engine"] == "vllm"


@pytest.mark.parametrize(
    "words", [("-", "-"), ("vllm serve 'unclosed",), ("--", "ls", "-la"), ("nothing here",)]
)
def test_what_is_no_job_is_one_error(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_stdin(monkeypatch, "")
    assert main(["check", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("memsheet:")
    assert "Traceback" not in told


def test_a_typed_message_is_diagnosed_as_a_file_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 37.09 GiB. GPU 0 has a total capacity "
        "of 79.25 GiB of which 30.20 GiB is free. Of the allocated memory 48.10 GiB is allocated by PyTorch, "
        "and 300.00 MiB is reserved by PyTorch but unallocated."
    )
    (tmp_path / "log").write_text(message)
    told = []
    for word in (message, str(tmp_path / "log")):
        assert main(["diagnose", word, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert [one["verdict"] for one in told] == ["real_need"] * 2
    assert told[0]["because"] == told[1]["because"]
    assert told[0]["inputs"] == ["message"]


@pytest.mark.parametrize("word", ["Killed", "OOMKilled", "MemoryError", "已杀死"])
def test_one_word_that_is_a_message_and_no_file_is_taken_as_one(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", word, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "not_gpu_memory"
    assert f'"{word}" is taken as the message itself' in " ".join(told["notes"])
    (tmp_path / word).write_text("all is well")
    assert main(["diagnose", word, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["found"], told["inputs"]) == (False, [word])


@pytest.mark.parametrize("word", ["train.log", "OutOfMemoryError.txt", "logs/Killed", "killer"])
def test_one_word_that_names_a_file_is_not_taken_as_a_message(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", word]) == 2
    assert "does not exist" in capsys.readouterr().err


REFUSED = {
    "1xT4": (
        "vllm serve google/gemma-3-4b-it --dtype bfloat16 --max-model-len 8192",
        "vllm serve google/gemma-3-4b-it --dtype half --max-model-len 8192",
        "vllm serve Qwen/Qwen3-0.6B --dtype bfloat16 --max-model-len 8192",
        "vllm serve Qwen/Qwen3-0.6B --kv-cache-dtype fp8",
    ),
    "1xV100-32GB": (
        "vllm serve Qwen/Qwen3-14B-AWQ --max-model-len 16384",
        "vllm serve Qwen/Qwen3-0.6B --quantization fp8",
    ),
    "1xL4": (
        "vllm serve Qwen/Qwen3-4B-AWQ --dtype float32 --max-model-len 4096",
        "vllm serve Qwen/Qwen3-0.6B --max-model-len 819200",
        "vllm serve Qwen/Qwen3-0.6B --block-size 7",
    ),
    "1xGTX1080Ti": ("vllm serve Qwen/Qwen3-0.6B", "sglang serve --model-path Qwen/Qwen3-0.6B"),
}
"""Commands that their engine stops at, by card, whatever memory it has."""


@pytest.mark.parametrize(("card", "line"), [(card, line) for card in REFUSED for line in REFUSED[card]])
def test_what_the_engine_refuses_does_not_start(
    card: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["check", "--gpus", card, "--", *line.split()])
    told = capsys.readouterr().out
    assert code == 10, told
    assert told.startswith("DOES NOT START")
    assert "Mistakes (1)" in told, told


@pytest.mark.parametrize(("card", "line"), [(card, line) for card in REFUSED for line in REFUSED[card]])
def test_a_flag_that_is_named_as_the_cure_is_not_refused(
    card: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cure that begins with a flag takes the place of the one that is refused."""
    main(["check", "--gpus", card, "--json", "--", *line.split()])
    (mistake,) = json.loads(capsys.readouterr().out)["mistakes"]
    words = mistake["cure"].partition(",")[0].split()
    if not words[0].startswith("--") or words[0] not in line:
        return
    kept = line.split()
    kept[kept.index(words[0]) + 1] = words[1]
    main(["check", "--gpus", card, "--", *kept])
    assert not capsys.readouterr().out.startswith("DOES NOT START"), kept


@pytest.mark.parametrize("words", [
    ("infer", "qwen3-0.6b", "--gpus", "1xGTX1080Ti", "--engine", "vllm"),
    ("infer", "qwen3-14b", "--gpus", "1xV100-32GB", "--engine", "vllm", "--quantize", "awq-int4", "--max-model-len", "4096"),
    ("train", "llama-tiny", "--gpus", "1xT4", "--attention", "flash", "--seq-len", "64"),
])  # fmt: skip
def test_a_question_that_its_engine_refuses_has_the_exit_code_of_a_check(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 10
    told = capsys.readouterr()
    assert json.loads(told.out)["error"] == "does not start"
    assert "DOES NOT START" in told.err
    assert main([*words, "--seq-len", "-3"]) == 2  # what nobody can be asked is bad input


def test_a_quoted_command_behind_the_dashes_is_one_without_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    line = "vllm serve Qwen/Qwen3-0.6B --max-model-len 8192"
    told = []
    for words in (line.split(), [line]):
        code = main(["check", "--gpus", "1xL4", "--", *words])
        told.append((code, capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0][0] == 0


@pytest.mark.parametrize(
    ("flag", "meant"), [("-tp2", "-tp 2"), ("-pp4", "-pp 4"), ("--quantisation fp8", "--quantization")]
)
def test_a_mistyped_flag_stands_above_the_verdict_with_the_one_that_is_meant(
    flag: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"vllm serve Qwen/Qwen3-0.6B --max-model-len 8192 {flag}"
    main(["check", "--gpus", "1xL4", "--", *line.split()])
    first = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert flag.split(maxsplit=1)[0] in first
    assert f"({meant}?)" in first


@pytest.mark.parametrize("written", ["13b", "13B", "13_000M", "13e9", "0.013T"])
def test_a_size_is_a_number_as_a_model_has_it_in_its_name(written: str) -> None:
    assert count_of(written) == 13 * 10**9


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", "base_model: x\n\tadapter: lora\n"), ("a.json", '{"a": 1,}')]
)
def test_why_a_file_is_not_read_stands_before_the_formats(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path / name)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.index("is not") < told.index("line ") < told.index("known: ")
