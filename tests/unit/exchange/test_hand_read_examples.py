"""What projects' own examples come to, each value read by hand out of the file and the tool's source.
``tests/wild_configs/index.json`` has licence, repository and commit of each.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER

from memsheet.questions.files_on_disk import read_texts_and_plan
from memsheet.questions.recognised_files import recognise_files

DEEPSPEED, FLASH, FULL = "deepspeed", "flash", "full"
OF = ("@model", "@gpus", "microbatch", "@accumulation", "seq_len", "engine", "zero", "recompute.mode", "adapter.rank", "attention")  # fmt: skip
READ: dict[str, tuple[Any, ...]] = {
    "ms-megatron-qwen3-moe-offload.sh": ("Qwen/Qwen3-30B-A3B-Base", 4, 1, None, 8192, "megatron", 1, FULL, None, FLASH),
    "ms-qwen3-vl-mixed.sh": ("Qwen/Qwen3-VL-4B-Instruct", 2, 1, 2, 4096, DEEPSPEED, 2, FULL, 8, FLASH),
    "ms-deepseek-r1-agent.sh": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None, 1, 8, 8192, None, None, FULL, None, FLASH),
    "ms-early-stop-lora.sh": ("Qwen/Qwen2.5-7B-Instruct", None, 1, 16, 2048, None, None, FULL, 8, None),
    "ms-full-dft.sh": ("Qwen/Qwen2.5-Math-1.5B", 4, 8, 32, 2048, DEEPSPEED, 2, FULL, None, None),
    "ms-grpo-qwenvl72b-vllm-lora.sh": ("Qwen/Qwen2.5-VL-72B-Instruct", 8, 1, 1, 8192, DEEPSPEED, 3, FULL, 8, FLASH),
    "ms-grpo-deepeyes.sh": ("Qwen/Qwen2.5-VL-7B-Instruct", 3, 1, 4, None, DEEPSPEED, 3, FULL, None, None),
    "ms-multi-node-dlc.sh": ("Qwen/Qwen2.5-7B-Instruct", None, 1, 4, 8192, DEEPSPEED, 2, FULL, None, None),
    "ms-grounding-lora.sh": ("Qwen/Qwen2-VL-7B-Instruct", None, 1, 16, 2048, None, None, FULL, 8, None),
    "ms-muonclip.sh": ("Qwen/Qwen2.5-1.5B-Instruct", 1, 1, 16, 2048, None, None, FULL, 8, None),
    "ms-dpo-lora.sh": ("Qwen/Qwen2.5-7B-Instruct", None, 1, 16, 2048, None, None, FULL, 8, None),
    "ms-gkd-vllm-colocate.sh": ("Qwen/Qwen2.5-7B", 4, 4, 1, 2048 + 512, DEEPSPEED, 3, FULL, None, FLASH),
    "ms-ppo-lora.sh": ("LLM-Research/Meta-Llama-3.1-8B-Instruct", 4, 1, 4, 2048 + 512, DEEPSPEED, 2, FULL, 8, None),
    "ms-sequence-parallel-seq-cls.sh": ("Qwen/Qwen2.5-0.5B", 2, 1, 16, 2048, None, None, FULL, 8, FLASH),
    "ms-olora.sh": ("Qwen/Qwen2.5-7B-Instruct", None, 1, 16, None, None, None, FULL, 8, None),
    "dc-random-ltd-gpt2.sh": ("gpt2", 1, 2, None, None, DEEPSPEED, None, "none", None, None),
    "tr-wordle-grpo.ipynb": ("Qwen/Qwen3-1.7B", None, 1, 64, None, "transformers", 0, FULL, None, None),
    "oi-sft-integration.sh": ("Qwen/Qwen3-0.6B", 1, 1, 4, 1024, None, None, None, None, FLASH),
    "oi-dpo-integration.sh": ("Qwen/Qwen3-0.6B", 1, 1, 4, 1024, None, None, None, None, FLASH),
    "oi-dpo-local.sh": ("allenai/OLMo-2-0425-1B", 1, 1, 4, 1024, "fsdp2", 3, None, None, FLASH),
    "oi-olmo-core-sft-7b.sh": ("allenai/Olmo-3-1025-7B", 8, 1, 4, 32768, "fsdp2", 3, None, None, FLASH),
    "oi-grpo-fast-13b-zero.sh": ("allenai/OLMo-2-1124-13B", 8, 1, 1, 4096, DEEPSPEED, 3, FULL, None, FLASH),
    "oi-grpo-mini-base-fast.sh": ("HuggingFaceTB/SmolLM2-135M", 1, 1, 1, 2048, DEEPSPEED, 2, FULL, None, FLASH),
}  # fmt: skip
TOLD = {
    "ms-megatron-qwen3-moe-offload.sh": ("--moe-shared-expert-overlap", "--use-precision-aware-optimizer"),
    "ms-multi-node-dlc.sh": ("$.nnodes",), "ms-muonclip.sh": ("optimizer",),
    "ms-dpo-lora.sh": ("$.method",), "ms-grpo-deepeyes.sh": ("$.method", "use_vllm"), "ms-grpo-qwenvl72b-vllm-lora.sh": ("$.method", "use_vllm"),
    "ms-gkd-vllm-colocate.sh": ("$.method", "teacher_model", "use_vllm"), "ms-ppo-lora.sh": ("$.method", "reward_model"),
    "ms-sequence-parallel-seq-cls.sh": ("task_type", "sequence_parallel_size"), "ms-olora.sh": ("init_weights",),
    "dc-random-ltd-gpt2.sh": ("loop.flags",), "tr-wordle-grpo.ipynb": ("script.method",), "oi-dpo-integration.sh": ("$.beside",), "oi-dpo-local.sh": ("$.beside",),
    "oi-olmo-core-sft-7b.sh": ("config_name", "rope_scaling_factor", "activation_checkpointing_mode", "$.beside"),
    "oi-grpo-fast-13b-zero.sh": ("$.beside",), "oi-grpo-mini-base-fast.sh": ("single_gpu_mode", "$.beside"),
}  # fmt: skip
"""What is told not to be held; nothing for the others."""
PLAIN = {"ms-deepseek-r1-agent.sh": "plain"}
"""Liger's loss takes no effect beside a scale of tokens."""
IN_PROSE = {
    "tr-orpo.py": {"@model": "gpt2", "microbatch": 4, "@accumulation": 1, "seq_len": 1024, "recompute.mode": "full", "precision.compute": "bf16"},
    "tr-rloo-vlm.py": {"@model": "Qwen/Qwen2.5-VL-3B-Instruct", "microbatch": 8, "precision.parameters": "bf16", "adapter.rank": 16, "adapter.dropout": 0.05},
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_an_example_is_read_as_its_tool_reads_it(name: str) -> None:
    texts, _ = read_texts_and_plan((str(FOLDER / name),), None)
    reads, _ = recognise_files(texts, ())
    found = {key: held for read in reads.values() for key, held in read.request.items()}
    assert tuple(found.get(key) for key in OF) == READ[name]
    assert found.get("loss") == {"ms-megatron-qwen3-moe-offload.sh": "plain", **PLAIN}.get(name)
    told = {at for read in reads.values() for at, _ in read.unmodelled}
    assert told == set(TOLD.get(name, ()))


@pytest.mark.parametrize("name", IN_PROSE)
def test_an_example_is_started_as_its_prose_says(name: str) -> None:
    own = f"{name.removeprefix('tr-').removesuffix('.py').replace('-', '_')}.py"
    reads, _ = recognise_files({own: (FOLDER / name).read_text()}, ())
    found = {key: held for read in reads.values() for key, held in read.request.items()}
    assert {key: found.get(key) for key in IN_PROSE[name]} == IN_PROSE[name]
    assert "trl" in {read.form.name for read in reads.values()}


def test_a_start_that_only_prepares_the_data_is_not_the_job() -> None:
    script = "torchrun open_instruct/olmo_core_finetune.py --model_name_or_path a/b --max_seq_length 512"
    text = f"{script} --cache_dataset_only\n{script} --per_device_train_batch_size 1"
    reads, _ = recognise_files({"run.sh": text}, ())
    assert [read.request["microbatch"] for read in reads.values() if read.form.name == "open-instruct"] == [1]


@pytest.mark.parametrize(("script", "dtype"), [("orpo", "auto"), ("dpo", "float32")])
def test_examples_that_load_the_model_bare_have_it_as_it_is_stored(script: str, dtype: str) -> None:
    command = f"python examples/scripts/{script}.py --model_name_or_path a/b --dtype float32"
    reads, _ = recognise_files({"run.sh": command}, ())
    (read,) = reads.values()
    assert (read.form.name, read.values["dtype"]) == ("trl", dtype)


MEGATRON = """python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \\
    --max-position-embeddings 64 --micro-batch-size 1 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype bf16
"""


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("train.sh", MEGATRON, ("--megatron-fsdp-main-grads-dtype", "bf16")),
    ],
)
def test_what_moves_bytes_and_is_not_held_is_told(name: str, text: str, told: tuple[str, object]) -> None:
    reads, _ = recognise_files({name: text}, ())
    assert told in reads[name].unmodelled
