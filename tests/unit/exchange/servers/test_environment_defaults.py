"""Defaults of variables of the environment in Python scripts, servers' and others': told, since whoever
starts the script may set another.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

NAME, MODEL = "MODEL_NAME", "Qwen/Qwen2.5-0.5B-Instruct"
READS = (
    f'os.getenv("{NAME}", "{MODEL}")',
    f'os.environ.get("{NAME}", "{MODEL}")',
    f'os.environ.get("{NAME}") or "{MODEL}"',
)
SCRIPTS = {
    "engine": "from vllm import LLM\nMODEL = {reads}\nllm = LLM(model=MODEL, max_model_len=2048)\n",
    "engine in place": "from vllm import LLM\nllm = LLM(model={reads}, max_model_len=2048)\n",
    "command": (
        "import subprocess\nMODEL: str = {reads}\n"
        'subprocess.run(["vllm", "serve", MODEL, "--max-model-len", "2048"])\n'
    ),
    "trainer": (
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\nMODEL = {reads}\n"
        "model = AutoModelForCausalLM.from_pretrained(MODEL)\n"
        'Trainer(model=model, args=TrainingArguments("o", per_device_train_batch_size=2)).train()\n'
    ),
}
TOLD = f"{NAME} = {MODEL} (nothing sets it in the environment)"


@pytest.mark.parametrize(
    ("kind", "reads"),
    [(kind, reads) for kind in SCRIPTS for reads in READS if kind != "trainer" or " or " not in reads],
)
def test_a_variable_that_nothing_sets_is_told_with_its_default(kind: str, reads: str, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(f"import os\n{SCRIPTS[kind].format(reads=reads)}")
    found = memsheet.check(
        tmp_path / "run.py", gpus="1xH100-80GB", **({"seq_len": 512} if kind == "trainer" else {})
    )
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == "qwen2.5-0.5b"
    assert sum(TOLD in line for line in found.assumed) == 1


def test_a_variable_that_the_start_sets_is_not_told_by_its_default(tmp_path: Path) -> None:
    text = SCRIPTS["trainer"].format(reads=READS[0])
    (tmp_path / "run.py").write_text(f"import os\n{text}")
    (tmp_path / "go.sh").write_text(f"export {NAME}=Qwen/Qwen2.5-1.5B\npython run.py --seed 1\n")
    found = memsheet.check(tmp_path / "go.sh", gpus="1xH100-80GB", seq_len=512)
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == "qwen2.5-1.5b"
    assert not any(TOLD in line for line in found.assumed)
