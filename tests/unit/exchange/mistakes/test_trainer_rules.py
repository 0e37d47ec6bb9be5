"""TRL's arguments are transformers' and its own: a mistake in the one is told in the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memsheet.cli import main

PLAIN = "per_device_train_batch_size: 1\n"
MISTAKES = {
    "recompute-gathers": "bf16: true\ngradient_checkpointing: true\nfsdp: full_shard\n",
    "recomputes-twice": (
        "bf16: true\ngradient_checkpointing: true\nfsdp: full_shard\nfsdp_config: "
        "{activation_checkpointing: true}\n"
    ),
    "full-width": "bf16: false\nfp16: false\n",
    "loads": "bf16: true\nfsdp: full_shard\nfsdp_config: {cpu_ram_efficient_loading: false}\n",
    "empties": "bf16: true\ntorch_empty_cache_steps: 1\n",
    "finds-batch": "bf16: true\nauto_find_batch_size: true\n",
    "tokens": "bf16: true\naverage_tokens_across_devices: false\n",
    "reenters": (
        "bf16: true\ngradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}\n"
    ),
    "optim": "bf16: true\noptim: adamw_torch\n",
    "yaml-trap": "bf16: true\nlearning_rate: 2e-5\n",
}
OF_TRL = "max_length: 512\ndataset_name: x\nmodel_name_or_path: llama-3.2-1b\nloss_type: nll\n"


def rules(folder: Path, text: str, form: str, capsys: pytest.CaptureFixture[str]) -> set[tuple[str, bool]]:
    (folder / "args.yaml").write_text(text)
    main(
        [
            "check",
            str(folder / "args.yaml"),
            "--model",
            "llama-3.2-1b",
            "--seq-len",
            "512",
            "--gpus",
            "8xA100-80GB",
            "--json",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert [one["format"] for one in found["files"]] == [form]
    return {(one["rule"], one["stops"]) for one in found["mistakes"]}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_trainers_arguments_is_one_of_trls(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = rules(tmp_path, f"{PLAIN}bf16: true\n", "transformers", capsys)
    trainer = rules(tmp_path, PLAIN + MISTAKES[name], "transformers", capsys) - none
    trl = rules(tmp_path, PLAIN + MISTAKES[name] + OF_TRL, "trl", capsys)
    assert trainer
    assert trainer <= trl
