"""A headline's figures are those of the table below it, and what is needed lies inside its range."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import memsheet
from memsheet.cli import main
from memsheet.report.shared.jobs.phases import phase_needs

SIZE = r"([\d.]+) (KiB|MiB|GiB)"
IN_GIB = {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}
SPREAD = """import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTTrainer, SFTConfig
from peft import LoraConfig
bnb = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-32B", quantization_config=bnb, device_map="auto")
trainer = SFTTrainer(model=model, train_dataset=data, peft_config=LoraConfig(r=16, target_modules="all-linear"),
    args=SFTConfig(output_dir="o", per_device_train_batch_size=1, max_length=2048, gradient_checkpointing=True, bf16=True))
trainer.train()
"""  # fmt: skip
KERNELS = (
    "base_model: Qwen/Qwen3-8B\nload_in_4bit: true\nadapter: qlora\nlora_r: 16\nlora_target_linear: true\n"
    "sequence_len: 4096\nsample_packing: true\nmicro_batch_size: 2\noptimizer: adamw_8bit\n"
    "gradient_checkpointing: true\nbf16: auto\n"
)
ZERO = (
    "train yi-34b --gpus 16x{card} --engine deepspeed --zero 2 --offload optimizer --precision bf16-master "
    "--seq-len 4096 --microbatch {batch} --recompute full --attention flash --expandable-segments true"
)
QUESTIONS = (
    ZERO.format(card="A100-80GB", batch=2), ZERO.format(card="A100-80GB", batch=1), ZERO.format(card="A100-40GB", batch=2),
    "train llama-3.1-70b --gpus 16xH100-80GB --engine fsdp2 --zero 3 --recompute full --seq-len 8192",
    "train llama-3.1-8b --gpus 1xA100-80GB --seq-len 8192", "train gpt2 --gpus 1xT4 --seq-len 512",
    "infer qwen3-32b --gpus 2xRTX6000Ada --engine vllm --tp 2 --max-model-len 40960",
)  # fmt: skip


def sized(found: re.Match[str], first: int = 1) -> float:
    return float(found[first]) * IN_GIB[found[first + 1]]


def in_headline(words: str) -> tuple[float, float]:
    """What is needed, and what the table adds up to; that they lie in the range and close with the room is
    held here.
    """
    need = re.search(rf"needs {SIZE}", words)
    assert need, words
    needed = sized(need)
    kept = re.search(rf"{SIZE} with cached segments", words)
    whole = sized(kept) if kept else needed
    ends = re.search(r"range ([\d.]+) (?:(?:KiB|MiB|GiB) )?to ([\d.]+) GiB", words)
    for size in (needed, whole):
        assert ends is None or float(ends[1]) - 0.01 <= size <= float(ends[2]) + 0.01, words
    room, over = re.search(r"of ([\d.]+) GiB", words), re.search(rf"{SIZE} too much", words)
    if room and over and "lacks" not in words:
        assert needed - float(room[1]) == pytest.approx(sized(over), abs=0.021), words
    return needed, whole


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[float, float, float, float]:
    """Of a screen: what its headline needs and adds up to, the last total of its table, and that of what
    stands above the allocator's slack and the context.
    """
    out = capsys.readouterr().out
    needed, whole = in_headline(" ".join(out.split("\n\n")[0].split()))
    cells = dict(re.findall(r"^. ([=+-]? ?[a-z ]+?) +([\d.]+) +[\d.]+%", out, re.MULTILINE))
    totals = {name.strip("= "): float(size) for name, size in cells.items()}
    last = totals.get("needed", totals["device"])
    return needed, whole, last, totals["allocated"] + totals.get("context", 0)


@pytest.mark.parametrize("line", QUESTIONS)
def test_of_a_question(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    main(line.split())
    needed, whole, last, tensors = shown(capsys)
    assert whole == pytest.approx(last, abs=0.011)
    assert needed == pytest.approx(whole, abs=0.011) or needed >= tensors - 0.021


@pytest.mark.parametrize(("name", "text", "gpus"), [
    ("train.py", SPREAD, "2xRTX4090"), ("train.py", SPREAD, "1xRTX4090"), ("job.yml", KERNELS, "1xRTX4090"), ("job.yml", KERNELS, "1xL40S"),
])  # fmt: skip
def test_of_files_that_hold_more_or_less_than_the_rows(
    name: str,
    text: str,
    gpus: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    (tmp_path / name).write_text(text)
    main(["check", str(tmp_path / name), "--gpus", gpus])
    needed, whole, last, _ = shown(capsys)
    assert needed == whole == pytest.approx(last, abs=0.011)


def test_a_length_that_is_found_has_one_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    line = "solve max-model-len qwen3-32b --gpus 2xRTX6000Ada --engine vllm --tp 2"
    assert main(line.split()) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("the whole range fits")]
    assert rows
    assert all(row.split()[-1] == "fits" for row in rows)


@pytest.mark.parametrize(("card", "other"), [("A100", "A100-80GB"), ("A100-40GB", "")])
def test_which_card_of_a_name_is_taken_stands_in_the_headline(
    card: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", "gpt2", "--gpus", f"1x{card}", "--seq-len", "512"])
    head = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert (f"on A100-40GB, not {other}" in head) is bool(other)


def test_the_range_of_a_job_is_that_of_its_fullest_phase(tmp_path: Path) -> None:
    reward = (
        "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: rm\nfinetuning_type: lora\nlora_rank: 16\n"
        "lora_target: all\ncutoff_len: 2048\nper_device_train_batch_size: 4\nbf16: true\n"
        "quantization_bit: 4\n"
    )
    (tmp_path / "rm.yaml").write_text(reward)
    answer = memsheet.check(tmp_path / "rm.yaml", gpus="1xA100-40GB").answer
    assert answer is not None
    (sheet,) = answer.sheets
    sizes = [need.device for need in phase_needs(sheet, answer.cluster)]
    for end in ("low", "value", "high"):
        assert max(getattr(size, end) for size in sizes) == getattr(sheet.device, end)
