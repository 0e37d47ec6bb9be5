"""Programs and servers, by what only their logs hold."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log

PROGRAMS = (
    (
        "vLLM",
        (
            "site-packages/vllm/",
            "EngineCore",
            "vllm serve",
            "vllm/worker",
            "vllm/v1",
            "Available KV cache memory: ",
            "Capturing CUDA graphs (",
            "vllm.",
            "Starting to load model ",
            "LLM engine (v",
            "vllm-openai",
            "GPU KV cache size: ",
        ),
    ),
    (
        "SGLang",
        (
            "sglang/srt",
            "sglang.",
            "mem_fraction_static",
            "mem-fraction-static",
            "#new-token: ",
            "sglang serve",
            "Load weight begin.",
        ),
    ),
    (
        "text-generation-inference",
        (
            "text_generation_server",
            "text_generation_launcher",
            "text_generation_client",
            "text_generation_router",
            "text-generation-inference",
        ),
    ),
    ("LMDeploy", ("/lmdeploy/", "lmdeploy serve", " - lmdeploy - ", "lmdeploy.pytorch")),
    ("verl", ("/verl/", "actor_rollout_ref", "verl.trainer")),
    ("TRL", ("/trl/trainer/", "SFTConfig", "trl sft")),
    ("OpenRLHF", ("/openrlhf/", "openrlhf.cli", "OpenRLHF")),
    ("axolotl", ("axolotl",)),
    ("LLaMA-Factory", ("llamafactory", "LLaMA-Factory")),
    ("unsloth", ("unsloth",)),
    (
        "Megatron-LM",
        (
            "megatron/core",
            "megatron/training",
            "pretrain_gpt.py",
            "elapsed time per iteration (ms): ",  # megatron/training/training.py, training_log
        ),
    ),
    ("DeepSpeed", ("/deepspeed/runtime/", "deepspeed --")),
    ("torchtitan trainer", ("torchtitan/",)),
    ("fairseq", ("fairseq",)),
    ("Lightning", ("lightning/pytorch/", "pytorch_lightning/")),
    ("Trainer", ("transformers/trainer.py", "TrainingArguments", "accelerate launch")),
    ("accelerate", ("distributed_type: FSDP", "fsdp_activation_checkpointing")),
    ("ComfyUI", ("ComfyUI", "comfy/ldm", "comfy/samplers")),
    (
        "stable-diffusion-webui",
        (
            "stable-diffusion-webui",
            "webui-forge",
            "webui-user",
            "Error completing request",
            "process_images_inner",
            "AUTOMATIC1111",
        ),
    ),
    ("InvokeAI", ("invokeai", "InvokeAI")),
    ("diffusers", ("diffusers/",)),
)
"""Programs by what only their logs hold; the first that is found speaks."""
SERVERS = ("vLLM", "SGLang", "text-generation-inference", "LMDeploy")
DRAWS = ("ComfyUI", "stable-diffusion-webui", "InvokeAI")
"""Programs that make pictures, and train nothing."""
_SPEAKERS = (
    (re.compile(r"EngineCore|VllmWorker|Worker_(?:TP|PP|DP|EP)|vLLMHttpServer"), "vLLM"),
    (re.compile(r"SGLang(?:Engine|HttpServer)"), "SGLang"),
    (re.compile(r"(?:Policy|Reference|Critic|Reward)ModelActor"), "OpenRLHF"),
    (re.compile(r"MegatronTrain\w{0,20}Actor"), "Megatron-LM"),
)
"""Programs by the names of their processes, which stand before what these say: vllm/v1/engine/core.py,
vllm/v1/executor/multiproc_executor.py, verl/workers/rollout, slime/ray, openrlhf/trainer/ray.
"""
SERVER_CODE = ("/vllm/", "/sglang/", "/text_generation_server/", "/lmdeploy/")


def program_of_speaker(log: Log, line: int) -> str:
    """Whose process said a line; empty where no prefix has its name."""
    speaker = log.speakers.get(line, "")
    return next((program for pattern, program in _SPEAKERS if pattern.match(speaker)), "")
