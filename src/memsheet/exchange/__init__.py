"""Plans as the files that engines run, and back. One file an engine, data (``formats``): its keys, where each
stands, and their source.

``plan_files``: what is asked → files, read back before anyone sees them, so that a file never says another
plan than it was made of. ``file_texts``: a stranger's file, recognised by what it holds →
``shared.file_format.FileReading``; ``file_releases``: the same as a release has it.
"""

from __future__ import annotations

from importlib import import_module

from memsheet.errors import input_error
from memsheet.exchange.shared.file_format import Format

NAMES = (
    "deepspeed",
    "accelerate",
    "roll",
    "llamafactory-v1",
    "axolotl",
    "llamafactory",
    "verl",
    "openrlhf",
    "slime",
    "nemo-rl",
    "prime-rl",
    "areal",
    "open-instruct",
    "torchtune",
    "torchtune-ppo",
    "torchtune-async",
    "torchtune-serve",
    "trl",
    "transformers",
    "unsloth",
    "litgpt",
    "llm-foundry",
    "nanotron",
    "nemo",
    "nemo-recipe",
    "megatron-bridge",
    "skypilot",
    "trainjob",
    "kubernetes",
    "swift",
    "swift-megatron",
    "deepspeed-chat",
    "megatron-generation",
    "megatron",
    "torchtitan",
    "torchtitan-toml",
    "pytorch",
    "slurm",
    "torchrun",
    "vllm",
    "helm",
    "sglang",
    "llama.cpp",
    "ollama",
    "tensorrt-llm",
    "tgi",
    "tei",
    "lmdeploy",
    "lm-studio",
)
"""In the order in which a file is tried: a batch script holds a launch, too."""
MODULES = {
    "llamafactory-v1": "llamafactory.v1",
    "torchtitan-toml": "torchtitan.toml",
    "swift-megatron": "swift.megatron",
    "megatron-generation": "megatron.generation",
    "torchtune-ppo": "torchtune.policies",
    "torchtune-async": "torchtune.orchestrated",
    "torchtune-serve": "torchtune.served",
    "llama.cpp": "llama_cpp",
    "tensorrt-llm": "tensorrt_llm",
    "lm-studio": "lm_studio",
    "open-instruct": "open_instruct",
    "deepspeed-chat": "deepspeed_chat",
    "llm-foundry": "llm_foundry",
    "nemo-rl": "nemo_rl",
    "prime-rl": "prime_rl",
    "nemo-recipe": "nemo.recipe_scripts",
    "megatron-bridge": "nemo.bridge",
}


def find_format(name: str) -> Format:
    """The format of that name. Raises InputError with the names there are."""
    if name not in NAMES:
        raise input_error("to", name, "is no format", f"one of {', '.join(written_formats())}")
    found: Format = import_module(f"memsheet.exchange.formats.{MODULES.get(name, name)}").FORMAT
    return found


def written_formats() -> list[str]:
    """The names of the formats that plans are written in; the others are read alone."""
    return sorted(name for name in NAMES if find_format(name).engines)


def format_to_write(name: str) -> Format:
    """The format of that name. Raises InputError where no plan is written in it."""
    form = find_format(name)
    if not form.engines:
        raise input_error(
            "to", name, "is read, and no plan is written in it", f"one of {', '.join(written_formats())}"
        )
    return form
