"""The line on which a key stands: the right one, or none."""

import json

from laws import every
from memsheet.exchange.mistakes.key_lines import line_of_key

JSON = """{
  "note": "zero_optimization",
  "zero_optimization": {
    "stage": 3, "offload_param": {"device": "cpu",
      "pin_memory": true},
    "offload_optimizer": {
      "pin_memory": true}
  },
  "many": [{"stage": 1}],
\t"bf16": {"enabled": true}
}
"""
YAML = """\
# learning_rate: 1
fsdp_config: {fsdp_version: 1}
base: &base
  lora_r: 8
model:
  - name: a
  - name: b
fp16: true
"""
TOML = """\
[training]
seq_len = 4096 # steps = 1
[parallelism . "inner"]
tensor_parallel_degree = 2
[[runs]]
steps = 1
"""
SHELL = """\
#!/bin/bash
#SBATCH --nodes=2
# --tp-size 4
python -m server --tp_size 8 \\
  --model x --model y
export RATE=1
"""


@every(
    "name, text, where, line",
    [
        ("a.json", JSON, "zero_optimization.stage", 4),
        ("a.json", JSON, "zero_optimization", 3),
        ("a.json", JSON, "zero_optimization.offload_optimizer.pin_memory", 7),
        ("a.json", JSON, "pin_memory", None),
        ("a.json", JSON, "bf16.enabled", 10),
        ("a.json", JSON, "absent", None),
        ("a.json", JSON[:-3], "zero_optimization", None),
        ("a.yaml", YAML, "fsdp_config.fsdp_version", 2),
        ("a.yaml", YAML, "fsdp_version", 2),
        ("a.yaml", YAML, "lora_r", 4),
        ("a.yaml", YAML, "8: fp16", 8),
        ("a.yaml", YAML, "7: fp16", None),
        ("a.yaml", YAML, "name", None),
        ("a.yaml", YAML, "learning_rate", None),
        ("a.yaml", "a: [", "a", None),
        ("a.toml", TOML, "training.seq_len", 2),
        ("a.toml", TOML, "parallelism.inner.tensor_parallel_degree", 4),
        ("a.toml", TOML, "steps", None),
        ("a.toml", 'text = """\nsteps = 1\n"""\n', "steps", None),
        ("a.sh", SHELL, "--tp-size", 4),
        ("a.sh", SHELL, "--tp-size = 8", 4),
        ("a.sh", SHELL, "--tp", None),
        ("a.sh", SHELL, "--nodes", 2),
        ("a.sh", SHELL, "--model", 5),
        ("a.sh", f"{SHELL}run --model z\n", "--model", None),
        ("a.sh", SHELL, "--tp-size full", 4),
        ("a.sh", SHELL, "tp_size", 4),
        ("a.sh", SHELL, "size", None),
        ("a.sh", SHELL, "RATE", 6),
        ("a.sh", SHELL, "server", None),
        ("a.yaml", "run: |\n  train.py --lora_r 8\n", "lora_r", 2),
        ("a.yaml", "run: |\n  train.py --lora_r 8\n", "adapter.lora_r", None),
        ("a.py", "x = 1\nargs(fp16=True)\n", "fp16", 2),
        ("a.py", "x = 1\nargs(fp16=True)\n", "2: fp16", 2),
        ("a.ipynb", json.dumps({"cells": ["fp16"]}), "1: fp16", None),
        ("a.sh", SHELL, "target modules", None),
    ],
)
def test_a_line_is_right_or_none(name: str, text: str, where: str, line: int | None) -> None:
    assert line_of_key(name, text, where) == line
