"""The screen of ``check``: whether it starts and fits, then the mistakes, then what was read; every key of it
only with --full.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from memsheet.cli import main

FILES = {
    "ds_config.json": '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "steps_per_print": 10, "wall_clock_breakdown": false, "zero_optimization": {"stage": 2}}',
    "accelerate.yaml": "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nmain_training_function: main\nrdzv_backend: static\nfsdp_config: {fsdp_version: 2}\n",
    "args.yaml": "per_device_train_batch_size: 1\nbf16: true\nlogging_steps: 10\noutput_dir: out\nlearning_rate: 0.00002\n",
    "trl.yaml": "model_name_or_path: llama-3.2-1b\ndataset_name: x\nmax_length: 512\nper_device_train_batch_size: 1\nlogging_steps: 10\nlearning_rate: 0.00002\n",
    "axolotl.yaml": "base_model: llama-3.2-1b\ndatasets: [{path: x, type: alpaca}]\nsequence_len: 512\nmicro_batch_size: 1\nlearning_rate: 0.00002\nwandb_project: x\n",
    "titan.toml": "[training]\nlocal_batch_size = 1\nseq_len = 512\n[metrics]\nlog_freq = 10\n[parallelism]\n",
    "serve.sh": "vllm serve llama-3.2-1b --max-model-len 4096 --port 8000\n",
    "pretrain.sh": "torchrun pretrain_gpt.py --micro-batch-size 1 --seq-length 512 --bf16 --log-interval 10 --lr 0.0001\n",
    "llamafactory.yaml": "model_name_or_path: llama-3.2-1b\nstage: sft\nfinetuning_type: full\ndataset: x\ntemplate: llama3\ncutoff_len: 512\nlogging_steps: 10\n",
}  # fmt: skip
LENGTH = {"ds_config.json", "accelerate.yaml", "args.yaml"}
VERDICT = r"^(FITS|DOES NOT FIT|UNCERTAIN|DOES NOT START|NO SHEET|no sheet:)"
MISTAKES = r"^(Mistakes \(\d+\)|No known mistake found\.|Nothing was accounted; no known)"


def shown(capsys: pytest.CaptureFixture[str], folder: Path, name: str, text: str, *more: str) -> str:
    (folder / name).write_text(text)
    length = ["--seq-len", "512"] if name in LENGTH else []
    code = main(
        ["check", str(folder / name), "--model", "llama-3.2-1b", "--gpus", "8xA100-80GB", *length, *more]
    )
    assert code in (0, 2, 10, 11)
    return capsys.readouterr().out


def places(text: str, name: str) -> tuple[int, int, int]:
    """Where the verdict, the mistakes and the first word of the file's keys stand."""
    found = [
        re.search(pattern, text, re.MULTILINE) for pattern in (VERDICT, MISTAKES, rf"^{re.escape(name)}  \(")
    ]
    assert all(found), text
    return tuple(one.start() for one in found if one)


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("name", FILES)
def test_the_verdict_then_the_mistakes_then_the_keys(name, width, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    short, full = (shown(capsys, tmp_path, name, FILES[name], *more) for more in ((), ("--full",)))
    for text in (short, full):
        verdict, mistakes, keys = places(text, name)
        assert (verdict, verdict < mistakes < keys) == (0, True)
        assert max(map(len, text.splitlines())) <= int(width)
    assert re.search(r"^  (used|ignored) ", full, re.MULTILINE)
    assert not re.search(r"^  (used|ignored) ", short, re.MULTILINE)
    assert " ".join(short[places(short, name)[2] :].split()).count("keys used") == 1


@pytest.mark.parametrize("name", ["args.yaml", "trl.yaml", "axolotl.yaml", "llamafactory.yaml"])
def test_many_keys_lengthen_the_full_screen_alone(name, tmp_path, capsys):
    lengths = {}
    for words in ((), ("--full",)):
        lengths[words] = [
            len(shown(capsys, tmp_path, name, text, *words))
            for text in (FILES[name], FILES[name] + "save_steps: 7\nseed: 3\nweight_decay: 0.1\n")
        ]
    assert lengths["--full",][1] > lengths["--full",][0]
    assert abs(lengths[()][1] - lengths[()][0]) <= 2


def test_files_that_do_not_start_say_so_before_all_else(tmp_path, capsys):
    text = FILES["ds_config.json"].replace('"bf16"', '"fp16": {"enabled": true}, "bf16"')
    (tmp_path / "ds_config.json").write_text(text)
    code = main(
        [
            "check",
            str(tmp_path / "ds_config.json"),
            "--model",
            "llama-3.2-1b",
            "--gpus",
            "8xA100-80GB",
            "--seq-len",
            "512",
        ]
    )
    text = capsys.readouterr().out
    assert (code, text.startswith("DOES NOT START")) == (10, True)
    assert text.index("Mistakes (") < text.index("! ")


@pytest.mark.parametrize("more", [(), ("--gpus", "2xH100-80GB"), ("--json",)])
def test_no_sheet_is_one_status_whatever_is_asked(more, tmp_path, capsys):
    for line in ("vllm serve $MODEL --max-model-len 8192", "vllm serve a/b"):
        (tmp_path / "serve.sh").write_text(f"{line}\n")
        assert main(["check", str(tmp_path / "serve.sh"), *more]) == 2
        told = capsys.readouterr().out
        assert "No known mistake found." not in told
        assert told.startswith("{" if "--json" in more else "NO SHEET")


def test_keys_alone_are_looked_over_where_a_kind_names_no_model(tmp_path, capsys):
    (tmp_path / "ds_config.json").write_text(FILES["ds_config.json"])
    assert main(["check", str(tmp_path / "ds_config.json")]) == 0
    assert capsys.readouterr().out.startswith("KEYS ALONE  no model is named")
    assert main(["check", str(tmp_path / "ds_config.json"), "--gpus", "8xH100-80GB"]) == 2
    assert capsys.readouterr().out.startswith("NO SHEET")


TRAINER = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("llama-3.2-1b")
Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True, deepspeed="ds.json", max_grad_norm=1.0)).train()
"""


@pytest.mark.parametrize("moves", [False, True])
def test_the_row_of_what_must_fit_has_the_range_of_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], moves: bool
) -> None:
    """Where files hold more than the sheet, the row says both ranges, and whose each is."""
    zero = {"stage": 3, "reduce_bucket_size": "auto"} if moves else {"stage": 2}
    (tmp_path / "ds.json").write_text(
        json.dumps(
            {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
        )
    )
    (tmp_path / "train.py").write_text(TRAINER)
    files = [str(tmp_path / name) for name in (("ds.json", "train.py") if moves else ("ds.json",))]
    main(["check", *files, "--model", "llama-3.2-1b", "--gpus", "8xA100-80GB", "--seq-len", "4096"])
    words = " ".join(capsys.readouterr().out.split())
    judged = re.search(r"range ([\d.]+) to ([\d.]+)", words)
    row = re.search(r"= device .*?\)", words)
    assert judged is not None
    assert row is not None
    assert ("on no row" in row[0]) == (f"({judged[1]} to {judged[2]})" not in row[0])
    assert judged[1] in row[0]
    assert judged[2] in row[0]


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("ollama run qwen3:0.6b", "--max-model-len"),
        ("text-embeddings-router --model-id BAAI/bge-m3", ""),
    ],
)
def test_what_is_open_beside_a_range_that_fits_is_told_at_once_with_what_settles_it(
    line: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card = "1xRTXA5000"
    assert main(["check", "--gpus", card, "--", *line.split()]) == 11
    head, told, *_ = capsys.readouterr().out.split("\n\n")
    assert head.startswith("UNCERTAIN")
    assert "The whole range fits" in told
    assert f"{flag or 'no flag'} settles it" in " ".join(told.split())
    if flag:
        assert main(["check", "--gpus", card, flag, "4096", "--", *line.split()]) == 0
