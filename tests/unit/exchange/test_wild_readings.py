"""What must be read out of launches that people run: values as they stand in the files, and the defaults of
their scripts, read by hand. ``tests/wild_configs/index.json`` has licence, repository and commit of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER

import memsheet
from laws import every
from memsheet.budget import Result
from memsheet.questions.recognised_files import recognise_files

LLAMA, OPT = "meta-llama/Llama-2-7b-hf", "facebook/opt-"
CHAT_OF = ("@model", "microbatch", "@accumulation", "seq_len", "zero", "adapter.rank", "recompute.mode")
CHAT = {
    "sft-llama2-run-llama2-7b": (LLAMA, 4, 1, 512, 3, None, "full"), "sft-llama2-run-llama2-7b-lora": (LLAMA, 4, 1, 512, 3, 128, "full"),
    "sft-opt-multi-node-run-66b": (f"{OPT}66b", 4, 1, 512, 3, 128, "full"), "sft-opt-single-gpu-run-1.3b": (f"{OPT}1.3b", 16, 8, 512, 0, 128, "none"),
    "sft-opt-single-gpu-run-6.7b-lora": (f"{OPT}6.7b", 8, 16, 512, 0, 128, "full"), "sft-opt-single-node-run-1.3b": (f"{OPT}1.3b", 8, 1, 512, 2, None, "none"),
    "sft-opt-single-node-run-1.3b-lora": (f"{OPT}1.3b", 8, 1, 512, 0, 128, "none"), "sft-opt-single-node-run-13b": (f"{OPT}13b", 4, 1, 512, 3, 128, "full"),
    "sft-opt-single-node-run-30b-lora": (f"{OPT}30b", 4, 1, 512, 3, 128, "full"), "sft-opt-single-node-run-6.7b": (f"{OPT}6.7b", 6, 1, 512, 3, None, "full"),
    "sft-other-language-run-chinese": ("bigscience/bloom-1b1", 8, 1, 512, 2, None, "none"), "sft-other-language-run-japanese": ("sberbank-ai/mGPT", 8, 1, 512, 2, None, "none"),
    "dpo-llama2-run-llama2-7b": (LLAMA, 8, 1, 512, 3, None, "full"), "dpo-llama2-run-llama2-7b-lora": (LLAMA, 8, 1, 512, 3, 128, "full"),
    "dpo-opt-multi-node-run-350m": (f"{OPT}350m", 2, 1, 512, 0, None, "none"), "dpo-opt-single-gpu-run-350m": (f"{OPT}350m", 16, 4, 512, 0, None, "none"),
    "dpo-opt-single-node-run-350m": (f"{OPT}350m", 4, 1, 512, 0, None, "none"),
    "rw-llama2-run-llama2-7b": (LLAMA, 8, 1, 512, 3, None, "full"), "rw-llama2-run-llama2-7b-lora": (LLAMA, 8, 1, 512, 3, 128, "full"),
    "rw-opt-multi-node-run-350m": (f"{OPT}350m", 2, 1, 512, 0, None, "none"), "rw-opt-single-gpu-run-350m": (f"{OPT}350m", 16, 4, 512, 0, None, "none"),
    "rw-opt-single-node-run-350m": (f"{OPT}350m", 4, 1, 512, 0, None, "none"),
    "rlhf-opt-single-node-run-1.3b": ("AdamG012/chat-opt-1.3b-sft-deepspeed", 4, 1, 512, 2, None, "none"),
    "rlhf-llama2-run-llama2-7b-lora": (None, 1, 1, 512, 3, 64, "full"), "rlhf-opt-single-node-run-13b": (None, 16, 1, 512, 3, 128, "full"),
    "rlhf-opt-single-gpu-run-1.3b": (None, 16, 2, 512, 0, 128, "full"), "rlhf-opt-single-node-run-6.7b": (None, 4, 1, 512, 3, None, "full"),
}  # fmt: skip
OI_OF = (
    "@model",
    "microbatch",
    "@accumulation",
    "seq_len",
    "recompute.mode",
    "@gpus",
    "engine",
    "adapter.rank",
)
OLMO, SPEED = "allenai/OLMo-2-", "deepspeed"
OPEN_INSTRUCT = {
    "tulu3-finetune-8b": ("meta-llama/Llama-3.1-8B", 1, 2, 4096, "full", 64, SPEED, None), "olmo2-finetune-7b": (f"{OLMO}1124-7B", 1, 2, 4096, None, 64, SPEED, None),
    "olmo2-finetune-13b": (f"{OLMO}1124-13B", 1, 1, 4096, "full", 64, SPEED, None), "olmo2-finetune-32b": (f"{OLMO}0325-32B", 1, 4, 4096, "full", 64, SPEED, None),
    "qwen-finetune-7b": ("Qwen/Qwen2.5-7B", 1, 2, 8192, "full", 64, SPEED, None), "olmo2-dpo-7b": (f"{OLMO}1124-7B-SFT", 1, 4, 2048, "full", 32, SPEED, None),
    "debug-finetune": ("Qwen/Qwen3-0.6B", 1, 4, 1024, None, 1, None, None), "dgx-spark-dpo-ultrafeedback": ("Qwen/Qwen3-0.6B", 4, 16, 1024, "full", 1, None, None),
    "dgx-spark-lora-sft-no-robots": ("Qwen/Qwen3-0.6B", 8, 8, 2048, "full", 1, None, 64), "dgx-spark-sft-no-robots": ("Qwen/Qwen3-0.6B", 32, 4, 1024, "full", 1, None, None),
    "debug-grpo-fast-3-gpu": ("Qwen/Qwen3-0.6B", 1, 1, 1024, "full", 2, SPEED, None), "qwen-grpo-fast-7b": ("Qwen/Qwen2.5-7B", 1, 1, 6144, "full", 4, SPEED, None),
}  # fmt: skip
BEAKER = {
    "oi-beaker-finetune-multinode.yaml": {"@model": "meta-llama/Meta-Llama-3-8B", "microbatch": 1, "@accumulation": 4, "seq_len": 4096, "@gpus": 32, "@nodes": 4, "engine": "deepspeed"},
    "oi-beaker-alpaca-7b.yaml": {"@model": "/hf_llama_models/", "microbatch": 4, "@accumulation": 8, "seq_len": 512, "@gpus": 4, "engine": "deepspeed", "precision.compute": "bf16"},
    "oi-multi-node-grpo.sh": {"@model": "Qwen/Qwen3-8B", "engine": "fsdp2", "@gpus": 8, "seq_len": 20480},
    "oi-olmo-1b-dpo.yaml": {"@model": "allenai/OLMo-1B-0724-hf", "recompute.mode": "full", "seq_len": 2048},
}  # fmt: skip
CLIP_LAYERS, INTERN_LAYERS = 24 * (4 * 1024**2 + 2 * 1024 * 4096), 45 * (4 * 3200**2 + 2 * 3200 * 12800)
SEEING = {
    "mg-pretrain-mistral-clip.sh": (1024, 14336, False, (CLIP_LAYERS // 4 * 2, CLIP_LAYERS // 4 * 2)),
    "mg-pretrain-qwen2-internvit.sh": (512, 29568, True, (INTERN_LAYERS // 8 * 2, INTERN_LAYERS // 8 * 2)),
}
VERL_OF = (
    "@model",
    "engine",
    "@gpus",
    "microbatch",
    "@accumulation",
    "seq_len",
    "seq_len_kind",
    "recompute.mode",
    "adapter.rank",
    "loss",
)
Q7, Q05, MOST = "Qwen/Qwen2-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "maximum"
VERL = {
    "ppo-qwen2-7b-rm.sh": (
        "$HOME/models/Qwen2-7B-Instruct",
        "fsdp1",
        8,
        16,
        2,
        1536,
        MOST,
        "full",
        None,
        "fused",
    ),
    "ppo-deepseek7b-sp2.sh": (
        "deepseek-ai/deepseek-llm-7b-chat",
        "fsdp1",
        8,
        32,
        2,
        512,
        MOST,
        "full",
        None,
        "fused",
    ),
    "grpo-qwen2-7b-seq-balance.sh": (Q7, "fsdp1", 8, 1, 11, 24000, MOST, "full", None, "fused"),
    "grpo-qwen2-7b-sgl-megatron.sh": (Q7, "megatron", 8, 4, 320, 2048, MOST, "none", None, "plain"),
    "grpo-qwen2-7b-megatron-lora.sh": (Q7, "megatron", 8, 1, 4, 16384, MOST, "full", 256, "plain"),
    "grpo-qwen3-235b-megatron.sh": (
        "${HOME}/verl/models/Qwen3-235B-A22B",
        "megatron",
        32,
        1,
        128,
        11680,
        MOST,
        "none",
        None,
        "fused",
    ),
    "grpo-seed-oss-36b.sh": (
        "ByteDance-Seed/Seed-OSS-36B-Base",
        "fsdp2",
        8,
        1,
        1,
        3072,
        MOST,
        "full",
        None,
        "fused",
    ),
    "grpo-qwen2-72b-lora.sh": (
        "Qwen/Qwen2.5-72B-Instruct",
        "fsdp2",  # adapters are units of their own
        8,
        44,
        5,
        768,
        MOST,
        "full",
        32,
        "fused",
    ),
    "gmpo-dapo-7b-math.sh": (
        "${HOME}/verl/models/Qwen2.5-Math-7B",
        "fsdp1",
        64,
        1,
        4,
        20480,
        MOST,
        "full",
        None,
        "fused",
    ),
    "gspo-3b-math-slurm.sh": (
        "Qwen/Qwen2.5-3B-Instruct",
        "fsdp1",
        8,
        1,
        128,
        20480,
        MOST,
        "full",
        None,
        "fused",
    ),
    "gspo-qwen30b-a3b-ep.sh": (
        "$HDFS_ROOT/model/Qwen3-30B-A3B-Base",
        "megatron",
        16,
        1,
        128,
        10240,
        MOST,
        "full",
        None,
        "plain",
    ),
    "sapo-qwen30b.sh": ("Qwen/Qwen3-30B-A3B-Base", "fsdp1", 8, 1, 22, 30720, MOST, "full", None, "fused"),
    "sft-qwen-05-peft.sh": (Q05, "fsdp2", None, 4, None, 1024, None, "full", 32, "plain"),
    "sft-qwen-05-sp2.sh": (Q05, "fsdp2", None, 4, None, 512, MOST, "full", None, "plain"),
    "sft-qwen3-vl-2b.sh": (
        "$PWD/model/Qwen3-VL-2B-Instruct",
        "fsdp2",
        8,
        1,
        1,
        24576,
        MOST,
        "full",
        None,
        "fused",
    ),
    "skypilot-ppo.yaml": (Q05, "fsdp1", 2, 4, 8, 768, MOST, "full", None, "fused"),
    "gsm8k-multiturn-grpo.yaml": (None, "fsdp1", 8, None, None, 2048, MOST, "full", None, "fused"),
}
VERL_DEGREES = {
    "grpo-qwen2-7b-sgl-megatron.sh": {
        "mesh.tp": 4,
        "mesh.pp": 2,
        "mesh.vpp": 2,
        "schedule": "interleaved",
        "sequence_parallel": True,
    },
    "grpo-qwen3-235b-megatron.sh": {
        "mesh.tp": 4,
        "mesh.pp": 8,
        "mesh.ep": 4,
        "mesh.etp": 1,
        "offload.optimizer": 1,
        "moe.dispatch": "flex",
    },
    "gspo-qwen30b-a3b-ep.sh": {"mesh.tp": 4, "mesh.pp": 1, "mesh.ep": 4, "moe.dispatch": "alltoall"},
    "gmpo-dapo-7b-math.sh": {"mesh.dp_shard": 32, "mesh.dp_replicate": 2},
    "grpo-qwen2-7b-megatron-lora.sh": {
        "mesh.tp": 4,
        "adapter.targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    "grpo-qwen2-72b-lora.sh": {
        "adapter.targets": ["all-linear"],
        "precision.parameters": "fp32",
        "precision.compute": "bf16",
    },
}
VERL_SHARED = {
    "ppo-deepseek7b-sp2.sh": 2,
    "grpo-qwen2-72b-lora.sh": 2,
    "gmpo-dapo-7b-math.sh": 4,
    "sapo-qwen30b.sh": 4,
    "sft-qwen-05-sp2.sh": 2,
    "sft-qwen3-vl-2b.sh": 2,
}
TORCHTUNE = {
    "eleuther-evaluation": {"@model": "Llama-2-7b-hf", "task": "infer", "engine": "transformers", "serving.max_model_len": 4096, "serving.max_sequences": 8, "serving.kv_dtype": "bf16", "mesh.tp": 1},
    "generation": {"@model": "Llama-2-7b-hf", "serving.max_sequences": 1, "serving.output_tokens": 300, "serving.prompt_tokens": 143, "serving.max_model_len": 443},
    "llama2-generation-v2": {"@model": "Llama-2-7b-chat-hf", "serving.output_tokens": 200, "mesh.tp": 1},
    "llama31-70b-generation-distributed": {"@model": "Meta-Llama-3.1-70B-Instruct", "mesh.tp": None, "precision.parameters": "bf16"},
    "quantization": {"@model": "Llama-2-7b-hf", "phase": "load", "task": "infer", "serving.max_model_len": None},
    "phi3-evaluation": {"@model": "phi3-mini", "serving.max_sequences": 8},
    "llama2-7b-qlora": {"@model": "Llama-2-7b-hf", "task": "train", "engine": "torchtune", "quantization.weights": "nf4", "adapter.rank": 8, "microbatch": 2, "@accumulation": 8},
    "llama2-1b-ppo": {"@model": "TinyLlama_v1.1", "microbatch": 16, "@accumulation": 1, "seq_len": 570, "seq_len_kind": "maximum", "recompute.mode": "full", "@gpus": 1},
    "mistral-7b-ppo": {"@model": "Mistral-7B-Instruct-v0.2", "microbatch": 128, "seq_len": 570, "optimizer.name": "paged_adamw", "engine": "transformers"},
    "qwen-3b-async-grpo": {"@model": "Qwen2.5-3B", "microbatch": 16, "seq_len": 1536, "@gpus": 2, "offload.activations": True},
    "llama-3b-grpo": {"@model": "llama3.2-3b", "microbatch": 16, "recompute.mode": "full"},
    "llama4-scout-full": {"@model": "Llama-4-Scout-17B-16E-Instruct", "mesh.tp": 2, "offload.optimizer": 1},
}  # fmt: skip
TORCHTUNE_ROLES = {"llama2-1b-ppo", "mistral-7b-ppo", "qwen-3b-async-grpo", "llama-3b-grpo"}
OTHERS = {
    "oi-tulu3-sft.yaml": {"@model": "meta-llama/Llama-3.1-8B", "microbatch": 1, "@accumulation": 2, "seq_len": 4096, "precision.parameters": "bf16", "attention": "flash"},
    "tr-example-config.yaml": {"@model": "Qwen/Qwen2.5-0.5B", "microbatch": 8, "seq_len": 1024, "precision.compute": "bf16", "recompute.mode": "full", "loss": "chunked"},
    "dc-clm-gpt2.sh": {"@model": "gpt2", "microbatch": 1, "@accumulation": 1, "@gpus": 16, "precision.compute": "fp16"},
    "dc-glue-bert-large.sh": {"@model": "bert-large-uncased", "microbatch": 64, "seq_len": 128},
}  # fmt: skip


TENSORRT_OF = (
    "@model",
    "mesh.tp",
    "mesh.ep",
    "mesh.attn_dp",
    "serving.max_sequences",
    "serving.max_batched_tokens",
    "serving.memory_fraction",
    "serving.kv_dtype",
)
TENSORRT = {
    "tl-deepseek-r1-reasoning-parser.sh": ("deepseek-ai/DeepSeek-R1", 8, 8, 8, 1024, 8192, 0.8, "fp8"),
    "tl-mgmn-trtllm-serve.slurm.sh": ("$LOCAL_MODEL", 16, 1, None, 2048, 8192, 0.9, None),
    "tl-curated-qwen3.yaml": (None, 1, 1, 1, 161, 1160, 0.8, None),
    "tl-curated-deepseek-r1-throughput.yaml": (None, 8, 8, 8, 1024, 3200, 0.8, "fp8"),
    "tl-curated-gpt-oss-120b-throughput.yaml": (None, 2, 2, 2, 720, 16384, 0.9, None),
    "tl-curated-llama-3.3-70b.yaml": (None, 1, 1, None, 1024, 2048, 0.9, "fp8"),
    "tl-disagg-config.yaml": ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1, 1, None, 2048, 8192, None, None),
}  # fmt: skip


TGI_OF = ("@model", "mesh.tp", "quantization.weights")
TGI = {
    "tg-falcon-40b.yaml": ("tiiuae/falcon-40b-instruct", 2, "nf4"), "tg-gemma-7b-it-shards.yaml": ("google/gemma-7b-it", 2, None),
    "tg-gke-deployment.yaml": ("meta-llama/Meta-Llama-3-8B-Instruct", 1, None), "tg-gke-llama-405b.yaml": ("meta-llama/Llama-3.1-405B-Instruct-FP8", 8, None),
    "tg-gke-multi-lora.yaml": ("google/gemma-2-2b-it", 1, None), "tg-llama3-70b.yaml": ("meta-llama/Meta-Llama-3-70B-Instruct", 2, "nf4"),
    "tg-mixtral-8x7b.yaml": ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2, "nf4"),
}  # fmt: skip


def read_out(name: str) -> tuple[dict, dict]:
    """All that is asked for, weak words with the firm ones over them; and what is not modelled."""
    reads, _ = recognise_files({name: (FOLDER / name).read_text()}, ())
    requests = [read.request for read in reads.values()]
    weak = {key[1:]: held for one in requests for key, held in one.items() if key.startswith("?")}
    firm = {key: held for one in requests for key, held in one.items() if not key.startswith("?")}
    return {**weak, **firm}, dict(pair for read in reads.values() for pair in read.unmodelled)


@every("name", CHAT)
def test_deepspeed_chat(name: str) -> None:
    found, beside = read_out(f"dc-{name}.sh")
    assert tuple(found.get(key) for key in CHAT_OF) == CHAT[name]
    assert found["precision.parameters"] == "fp16"
    assert found["engine"] == "deepspeed"
    step = {"rw": "a reward model", "rlhf": "RLHF"}.get(name.partition("-")[0], "")
    assert beside["$.method"].startswith(step)


@pytest.mark.parametrize("name", [name for name in CHAT if name.startswith(("dpo-llama2", "rw-llama2"))])
def test_what_is_offloaded_in_the_third_stage(name: str) -> None:
    found, _ = read_out(f"dc-{name}.sh")
    assert (found["offload.optimizer"], found["offload.parameters"]) == (1, 1)


@pytest.mark.parametrize("name", OPEN_INSTRUCT)
def test_open_instruct(name: str) -> None:
    found, beside = read_out(f"oi-{name}.sh")
    wanted = dict(zip(OI_OF, OPEN_INSTRUCT[name], strict=True))
    given = {"recompute.mode": "none", "engine": "transformers"}
    assert {key: found.get(key) for key in wanted} == {
        key: given.get(key) if held is None else held for key, held in wanted.items()
    }
    assert ("$.beside" in beside) is ("dpo" in name or "grpo" in name)


@pytest.mark.parametrize("name", VERL)
def test_verl(name: str) -> None:
    found, beside = read_out(f"ve-{name}")
    assert tuple(found.get(key) for key in VERL_OF) == VERL[name]
    wanted = VERL_DEGREES.get(name, {})
    assert {key: found.get(key) for key in wanted} == wanted
    assert ("$.roles" in beside) is not name.startswith("sft")
    assert str(beside.get("$.ulysses", "1")).partition(" ")[0] == str(VERL_SHARED.get(name, 1))


@pytest.mark.parametrize("name", BEAKER)
def test_experiments_and_their_files(name: str) -> None:
    found, _ = read_out(name)
    assert {key: found.get(key) for key in BEAKER[name]} == BEAKER[name]


def test_a_key_that_stands_twice_is_told() -> None:
    name = "oi-olmo-1b-dpo.yaml"
    reads, _ = recognise_files({name: (FOLDER / name).read_text()}, ())
    assert any("stands twice = the last" in one for read in reads.values() for one in read.assumed)


@pytest.mark.parametrize("name", SEEING)
def test_megatron_models_that_see(name: str) -> None:
    """The language model by its word and its own length, and what is frozen as a doubt."""
    reads, _ = recognise_files({name: (FOLDER / name).read_text()}, ())
    read = next(read for read in reads.values() if read.form.name == "megatron")
    length, inner, bias, bytes_of_tower = SEEING[name]
    sizes = read.form.model(read.values)
    assert (read.request["seq_len"], sizes["ffn_hidden_size"], sizes.get("add_qkv_bias", False)) == (
        length,
        inner,
        bias,
    )
    assert dict(read.unmodelled)["--freeze-LM"] is True
    (tower,) = read.form.moves(read.values, {})
    assert (tower.low_bytes, tower.high_bytes) == bytes_of_tower


@pytest.mark.parametrize("name", TORCHTUNE)
def test_torchtune(name: str) -> None:
    found, beside = read_out(f"tu-{name}.yaml")
    assert {key: found.get(key) for key in TORCHTUNE[name]} == TORCHTUNE[name]
    assert ("$.recipe" in beside) is (name in TORCHTUNE_ROLES)


@pytest.mark.parametrize("name", OTHERS)
def test_recipes_and_examples(name: str) -> None:
    found, _ = read_out(name)
    assert {key: found.get(key) for key in OTHERS[name]} == OTHERS[name]


@pytest.mark.parametrize("name", TENSORRT)
def test_tensorrt_llm(name: str) -> None:
    found, beside = read_out(name)
    assert tuple(found.get(key) for key in TENSORRT_OF) == TENSORRT[name]
    assert str(beside["accounting"]).startswith("TensorRT-LLM")
    assert ("speculative_config" in beside) is ("r1-throughput" in name)


@pytest.mark.parametrize("name", TGI)
def test_text_generation_inference(name: str) -> None:
    found, beside = read_out(name)
    assert tuple(found.get(key) for key in TGI_OF) == TGI[name]
    assert (found["serving.max_batched_tokens"], found["serving.memory_fraction"]) == (4096, 0.9)
    assert ("--quantize" in beside) is (found.get("quantization.weights") == "nf4")
    assert ("--lora-adapters" in beside) is ("lora" in name)


DOCUMENTED = '''"""
# Full training
python trl/scripts/dpo.py --model_name_or_path Qwen/Qwen2-0.5B-Instruct \\
    --per_device_train_batch_size 2 --no_remove_unused_columns
"""
import trl
'''


def test_a_script_is_read_by_the_command_that_its_text_says() -> None:
    reads, _ = recognise_files({"dpo.py": DOCUMENTED}, ())
    (read,) = reads.values()
    assert (read.form.name, read.request["microbatch"], read.unknown) == ("trl", 2, ())
    assert ("method", "DPO") in read.unmodelled
    assert any("command" in one for one in read.assumed)


def test_a_wrapper_multiplies_the_processes_of_what_it_starts() -> None:
    text = """CMD="accelerate launch --num_processes 8 open_instruct/finetune.py --model_name_or_path a/b"
python mason.py --num_nodes 4 --gpus 8 -- source setup.sh \\&\\& $CMD
"""
    reads, _ = recognise_files({"run.sh": text}, ())
    assert {read.form.name: read.request.get("@gpus") for read in reads.values()} == {
        "accelerate": 32,
        "open-instruct": None,
    }


def test_arguments_alone_leave_the_division_of_the_model_to_their_launcher(tmp_path: Path) -> None:
    """Eight billion parameters undivided fit no card: whoever starts the script may divide them."""
    (tmp_path / "train.yaml").write_text(
        "model_name_or_path: meta-llama/Llama-3.1-8B\nwith_tracking: true\nmax_seq_length: 4096\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\n"
    )
    checked = memsheet.check(tmp_path / "train.yaml", gpus="8xH100-80GB")
    assert checked.result is Result.UNCERTAIN
    assert "launcher" in checked.doubt
