"""A fix does what it promises to whoever adds its flags to the command."""

from __future__ import annotations

import shlex

import pytest

import memsheet
from memsheet.cli import main
from memsheet.report.words import flags_of

QUESTIONS = [
    ("llama-3.1-8b", {"gpus": "8xA100-80GB", "engine": "transformers", "precision": "bf16-autocast", "seq_len": 2048}),
    ("llama-3.1-8b", {"gpus": "8xA100-80GB", "engine": "transformers", "precision": "fp32", "seq_len": 2048}),
    ("llama-3.1-8b", {"gpus": "8xA100-80GB", "engine": "transformers", "seq_len": 2048, "microbatch": 4, "dp_replicate": 8}),
    ("qwen2.5-7b", {"gpus": "1xRTX4090", "seq_len": 1000, "precision": "fp32", "optimizer": "adamw", "optimizer_implementation": "fused"}),
    ("qwen2.5-7b", {"gpus": "1xRTX4090", "seq_len": 4096, "lora_rank": 16, "quantize": "nf4"}),
    ("llama-3-70b", {"gpus": "8xA100-80GB", "engine": "fsdp2", "zero": 3, "seq_len": 2048, "microbatch": 4}),
    (
        "llama-3-70b",
        {"gpus": "8xA100-80GB", "engine": "fsdp2", "zero": 3, "dp_shard": 8, "seq_len": 2048, "microbatch": 4, "host_memory": "256GiB"},
    ),
    ("llama-2-7b", {"gpus": "1xA100-80GB", "seq_len": 4096, "optimizer_implementation": "foreach"}),
    ("llama-2-13b", {"gpus": "4xA100-80GB", "engine": "deepspeed", "zero": 1, "seq_len": 4096, "microbatch": 2}),
]


@pytest.mark.parametrize(("model", "options"), QUESTIONS)
def test_a_fix_holds_when_its_flags_are_added(model: str, options: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    answer = memsheet.train(model, **options)
    assert answer.verdict is not None
    fix = answer.verdict.cheapest_fix
    assert fix is not None
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    added = shlex.split(flags_of(fix))
    names = {word for word in added if word.startswith("--")}
    kept = [word for at in range(0, len(flags), 2) if flags[at] not in names for word in flags[at : at + 2]]
    assert main(["train", model, *kept, *added, "--json"]) == 0
    assert f'"device_bytes": {fix.device.value}' in capsys.readouterr().out
