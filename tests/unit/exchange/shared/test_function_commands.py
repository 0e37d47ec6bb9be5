"""Command lines that are made of a function: their defaults, and what a start gives in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

BODY = """
    model = AutoModelForCausalLM.from_pretrained(base_model, torch_dtype=torch.bfloat16)
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=micro_batch, bf16=True)
    Trainer(model=model, args=args).train()
"""
HEAD = "import torch\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
PLAIN = f'def main(base_model: str = "Qwen/Qwen2.5-0.5B", micro_batch: int = 4):{BODY}'
COMMANDS = {
    "fire": f"import fire\n{PLAIN}\nfire.Fire(main)\n",
    "fire without a name": f"import fire\n{PLAIN}\nif __name__ == '__main__':\n    fire.Fire()\n",
    "jsonargparse": f"from jsonargparse import CLI\n{PLAIN}\nCLI(main)\n",
    "tyro": f"import tyro\n{PLAIN}\ntyro.cli(main)\n",
    "typer": (
        "import typer\napp = typer.Typer()\n@app.command()\n"
        'def main(base_model: str = typer.Option("Qwen/Qwen2.5-0.5B", "--model", "-m", help="which"), '
        f'micro_batch: int = typer.Option(default=4, help="rows")):{BODY}\napp()\n'
    ),
    "click": (
        'import click\n@click.command()\n@click.option("-m", "--base-model", default="Qwen/Qwen2.5-0.5B")\n'
        f'@click.option("--rows", "micro_batch", type=int, default=4)\ndef main(base_model, micro_batch):{BODY}\nmain()\n'
    ),
}
FLAGS = {"typer": ("--model", "--micro-batch"), "click": ("--base-model", "--rows")}
GPUS = "8xH100-80GB"


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_functions_defaults_are_its_commands(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + COMMANDS[kind])
    found = memsheet.check(tmp_path / "train.py", gpus=GPUS, seq_len=512)
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.workload.microbatch) == ("qwen2.5-0.5b", 4)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", COMMANDS)
def test_what_a_start_gives_a_command_stands_over_its_defaults(kind: str, tmp_path: Path) -> None:
    """The sheet was of the default, and could be sure of it."""
    model, rows = FLAGS.get(kind, ("--base_model", "--micro_batch"))
    (tmp_path / "train.py").write_text(HEAD + COMMANDS[kind])
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc-per-node 8 train.py {model} Qwen/Qwen2.5-7B {rows} 2\n"
    )
    found = memsheet.check(tmp_path / "run.sh", gpus=GPUS, seq_len=512)
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.workload.microbatch) == ("qwen2.5-7b", 2)  # type: ignore[union-attr]


@pytest.mark.parametrize("flag", ["--base_model Qwen/Qwen2.5-7B", "--micro_batch_size 8"])
def test_a_flag_of_size_that_a_text_has_no_use_for_leaves_a_verdict_open(flag: str, tmp_path: Path) -> None:
    """A parser that is not understood may read it."""
    text = PLAIN.replace("def main", "import ours\ngiven = ours.parse()\ndef main") + "\nmain()\n"
    (tmp_path / "train.py").write_text(HEAD + text)
    results = []
    for given in ("", flag):
        (tmp_path / "run.sh").write_text(f"torchrun --nproc-per-node 8 train.py {given}\n")
        results.append(memsheet.check(tmp_path / "run.sh", gpus=GPUS, seq_len=512).result)
    assert [one and one.value for one in results] == ["fits", "uncertain"]
