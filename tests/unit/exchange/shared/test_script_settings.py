"""Scripts that hand what they say to a training in another file: read by their names, and never sure."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError

SAID = "base_model='Qwen/Qwen2.5-0.5B', batch_size=2, learning_rate=1e-4, num_epochs=3, max_seq_length=1024"
SCRIPTS = {
    "call": f"from ours import train_model\ntrain_model({SAID})\n",
    "config's call": f"from ours import TrainingConfig, run_all\nrun_all(TrainingConfig({SAID}))\n",
    "constants": (
        "from ours import train\nBASE_MODEL = 'Qwen/Qwen2.5-0.5B'\nBATCH_SIZE = 2\nLEARNING_RATE = 1e-4\n"
        "NUM_EPOCHS = 3\nMAX_SEQ_LENGTH = 1024\ntrain()\n"
    ),
    "class": (
        "from dataclasses import dataclass\n@dataclass\nclass TrainConfig:\n    base_model: str = 'Qwen/Qwen2.5-0.5B'\n"
        "    batch_size: int = 2\n    learning_rate: float = 1e-4\n    num_epochs: int = 3\n    max_seq_length: int = 1024\n"
    ),
    "flags": (
        "import argparse\nfrom ours import train\np = argparse.ArgumentParser()\n"
        "p.add_argument('--base_model', default='Qwen/Qwen2.5-0.5B')\np.add_argument('--batch_size', type=int, default=2)\n"
        "p.add_argument('--learning_rate', type=float, default=1e-4)\np.add_argument('--num_epochs', type=int, default=3)\n"
        "p.add_argument('--max_seq_length', type=int, default=1024)\ntrain(p.parse_args())\n"
    ),
    "typer": (
        "import typer\nfrom ours import fit\napp = typer.Typer()\n@app.command()\n"
        "def train(base_model: str = typer.Option('Qwen/Qwen2.5-0.5B'), batch_size: int = typer.Option(2), "
        "learning_rate: float = 1e-4, num_epochs: int = 3, max_seq_length: int = 1024):\n    fit(base_model)\napp()\n"
    ),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_what_a_script_says_of_a_training_elsewhere_is_read_by_its_names(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPTS[kind])
    found = memsheet.check(tmp_path / "run.py", gpus="1xH100-80GB")
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert found.answer.model.name == "qwen2.5-0.5b"
    assert (plan.workload.microbatch, plan.workload.seq_len) == (2, 1024)  # type: ignore[union-attr]
    assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize(
    "text",
    [
        "from openai import OpenAI\nOpenAI().chat.completions.create(model='Qwen/Qwen2.5-7B', max_tokens=9)\n",
        "from ours import train\ntrain(base_model='Qwen/Qwen2.5-7B')\n",  # of how much nothing is said
        "from ours import evaluate\nevaluate(base_model='Qwen/Qwen2.5-7B', batch_size=8)\n",
        "train: [\n",
    ],
)
def test_a_script_that_says_no_batch_of_a_training_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(text)
    with pytest.raises(InputError, match="not recognised"):
        memsheet.check(tmp_path / "run.py", gpus="1xH100-80GB")
