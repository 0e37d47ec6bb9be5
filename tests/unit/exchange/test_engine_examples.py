"""Configurations as they stand in the engines' own repositories: every key accounted for, none unknown that
the engine knows.

``tests/configs/index.json`` names the repository, commit and path of each. Comments, prose and layout are
left out; scripts are their last command, variables of the caller's filled in where the script has a default.
``unknown``: keys of an example that its engine does not know.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from laws import every
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml

FOLDER = Path(__file__).parents[2] / "configs"
INDEX: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text())
PARSERS = {"json": parse_json, "yaml": parse_yaml}
LEAST = {
    "accelerate": 12, "axolotl": 18, "deepspeed": 12, "llamafactory": 20, "megatron": 8, "sglang": 7, "torchtitan": 6, "vllm": 7,
}  # fmt: skip
SAID: dict[str, dict[str, Any]] = {
    "axolotl-ax-llama-3-lora-8b.yaml": {"adapter.rank": 32, "seq_len": 4096, "quantization.weights": "int8", "optimizer.name": "adamw_8bit"},
    "axolotl-ax-llama-3-qlora-fsdp-405b.yaml": {"engine": "fsdp1", "zero": 3, "quantization.weights": "nf4", "offload.parameters": 1},
    "axolotl-ax-gpt-oss-gpt-oss-20b-fft-fsdp2-offload.yaml": {"engine": "fsdp2", "offload.optimizer": 1, "precision.parameters": "bf16"},
    "axolotl-ax-distributed-parallel-llama-3-1-8b-hsdp-tp.yaml": {"engine": "fsdp2", "mesh.dp_shard": 4, "mesh.tp": 2},
    "llamafactory-lf-train-full-qwen3-full-sft.yaml": {"engine": "deepspeed", "recompute.mode": "full", "microbatch": 1, "seq_len": 2048},
    "llamafactory-lf-galore-llama3-full-sft.yaml": {"optimizer.name": "galore", "optimizer.rank": 128, "precision.parameters": "bf16"},
    "llamafactory-lf-train-qlora-qwen3-lora-sft-otfq.yaml": {"quantization.weights": "nf4", "adapter.rank": 8, "adapter.targets": ["all"]},
    "deepspeed-ax-zero3-bf16-cpuoffload-all.json": {"zero": 3, "offload.optimizer": 1, "offload.parameters": 1, "precision.master_weights": "fp32"},
    "accelerate-trl-fsdp2.yaml": {"engine": "fsdp2", "zero": 3, "@gpus": 8, "precision.compute": "bf16"},
    "torchtitan-tt-llama3-405b.toml": {"mesh.tp": 8, "seq_len": 8192, "recompute.mode": "full"},
    "megatron-megatron-train-mixtral-8x7b-distributed.sh": {"mesh.ep": 8, "seq_len": 4096, "microbatch": 1},
    "vllm-benchmark-llama-70b.sh": {"mesh.tp": 4, "serving.max_batched_tokens": 8192},
    "sglang-llama-4-scout.sh": {"mesh.tp": 8, "serving.memory_fraction": 0.8, "serving.max_model_len": 65536},
}  # fmt: skip
"""What some of them come to."""


def reading(name: str) -> FileReading:
    return read_text(name, (FOLDER / name).read_text(), PARSERS)


@every("row", INDEX)
def test_no_key_is_unknown_that_the_engine_knows(row: dict[str, Any]) -> None:
    found = reading(row["file"])
    assert found.form.name.partition("-")[0] == row["format"]
    assert [at for at, _ in found.unknown] == row.get("unknown", [])
    assert found.problems == ()
    told = {
        *found.used,
        *found.ignored,
        *(at for at, _ in found.unknown),
        *(at for at, _ in found.unmodelled),
    }
    assert {at for at, value in found.values.items() if value is not None} <= told, (
        "a key was dropped without a word"
    )


@pytest.mark.parametrize("name", SAID)
def test_what_they_say(name: str) -> None:
    found = reading(name).request
    assert {key: found.get(key) for key in SAID[name]} == SAID[name]


def test_there_are_enough_of_each_and_each_has_its_source() -> None:
    counts = Counter(row["format"] for row in INDEX)
    assert {form for form, least in LEAST.items() if counts[form] < least} == set()
    assert len(INDEX) >= 90
    assert all(len(row["commit"]) == 40 and row["repo"].count("/") == 1 and row["path"] for row in INDEX)
    assert {row["file"] for row in INDEX} == {path.name for path in FOLDER.iterdir()} - {"index.json"}


def test_they_hold_no_prose() -> None:
    for row in INDEX:
        text = (FOLDER / row["file"]).read_text()
        assert not any(line.lstrip().startswith(("#", "//")) for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "d.json",
            '{"zero_optimization": {"stage": 3, "max_live_parameters": 5, "prefetch_bucket_size": 6}}',
            {"zero": 3},
        ),
        (
            "a.yaml",
            "distributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\n",
            {"precision.compute": "fp16"},
        ),
        (
            "a.yaml",
            "distributed_type: MULTI_GPU\nfp16: true\nmixed_precision: bf16\ndynamo_backend: 'NO'\n",
            {"precision.compute": "bf16"},
        ),
        (
            "s.sh",
            "python -m sglang.launch_server --model-path m --mem-fraction 0.5 --disable-radix\n",
            {"serving.memory_fraction": 0.5},
        ),
    ],
)
def test_other_names_are_read_as_the_engine_reads_them(name: str, text: str, said: dict[str, Any]) -> None:
    found = read_text(name, text, PARSERS)
    assert (found.unknown, found.unmodelled) == ((), ())
    assert said.items() <= found.request.items()


def test_a_start_that_several_flags_have_is_none_of_them() -> None:
    found = read_text("s.sh", "python -m sglang.launch_server --model-path m --speculative-num 3\n", PARSERS)
    assert [at for at, _ in found.unknown] == ["--speculative-num"]


def test_a_group_that_moves_states_is_told_by_its_name() -> None:
    found = read_text(
        "d.json", '{"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}', PARSERS
    )
    assert (found.unknown, dict(found.unmodelled)) == ((), {"zero_optimization.zenflow": "set"})


@pytest.mark.parametrize(
    ("word", "near"),
    [("lora_rank", "lora_r"), ("grad_accum_steps", "gradient_accumulation_steps"), ("lora_dim", "lora_r")],
)
def test_another_tools_word_is_told_as_the_key_that_means_it(word: str, near: str) -> None:
    text = f"model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 2\n{word}: 16\n"
    assert dict(read_text("recipe.yaml", text, PARSERS).unknown) == {word: near}
