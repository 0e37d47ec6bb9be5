"""What a person may have meant by a word that no command has: loaded when something is wrong.

command_hint   a word in the place of a command: another tool's verb, a launcher, a model, a file
flag_hint      a flag that is another tool's, or an engine's name
joined_name    a model's name that was typed in several words
is_launch      a launcher's name in the place of a file
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from memsheet.plan.engine_registry import MODELLED

VERBS = {
    **dict.fromkeys(("serve", "inference", "predict", "host", "deploy", "run", "chat"), "infer"),
    **dict.fromkeys(("finetune", "fine-tune", "pretrain", "sft", "lora", "qlora"), "train"),
    **dict.fromkeys(("grpo", "rl", "rlhf", "ppo"), "job trl-grpo --model"),
    **dict.fromkeys(("fit", "fits", "estimate", "calc", "size"), "train MODEL … or memsheet infer"),
}
"""What other tools call a question → how it is asked here."""
LAUNCHERS = frozenset((
    *MODELLED, "torchrun", "accelerate", "python", "python3", "llama-server", "llama-cli", "ollama", "trl", "axolotl", "swift", "tune",
    "llamafactory-cli", "ray", "srun", "bash", "sh", "uv", "composer", "text-generation-launcher",
))  # fmt: skip
"""Programs whose command is asked about as it is typed."""
FLAGS = {
    "--peft": "--lora-rank 16; --use-peft takes peft's rank", "--method": "--lora-rank 16 or --qlora; of several models: memsheet job",
    "--r": "--lora-rank", "--rank": "--lora-rank", **dict.fromkeys(("--grpo", "--rlhf", "--ppo"), "memsheet job trl-grpo --model MODEL …"),
    **dict.fromkeys(("--dpo", "--kto", "--reward"), "memsheet check --gpus … -- trl dpo --model_name_or_path MODEL"),
    **dict.fromkeys(("--vram", "--memory", "--gpu-memory", "--card", "--device", "--hardware"), "--gpus 1xRTX4090, or a size alone: --gpus 24GB"),
    **dict.fromkeys(("--num-gpus", "--n-gpus", "--ngpus", "--gpu-count", "--num-processes", "--nproc-per-node"), "the count stands before the card: --gpus 8xH100-80GB"),
    "--critic": "several models are asked about as their launch is typed: memsheet check --gpus … -- python3 -m verl.trainer.main_ppo …",
}  # fmt: skip
"""Other tools' flags that are no flag here → what says it."""
MOST_WORDS = 3


def command_hint(name: str, others: Sequence[str]) -> str:
    """What a word in the place of a command stands for; empty where it is like nothing known."""
    word = name.lower()
    if word in VERBS:
        return f"memsheet {VERBS[word]} {_first_name(others) or 'MODEL'} …"
    if word in LAUNCHERS:
        return f"memsheet check --gpus 8xH100-80GB -- {' '.join((name, *others))}"
    if Path(name).suffix and Path(name).is_file():
        return f"memsheet check {name} …"
    from memsheet.catalog.names import bundled_match

    if not name.startswith("-") and ("/" in name or bundled_match(name)):
        return f"memsheet train {name} … or memsheet infer {name} …"
    return ""


def _first_name(words: Sequence[str]) -> str:
    return words[0] if words and not words[0].startswith("-") else ""


def flag_hint(name: str, known: Iterable[str]) -> str:
    """What says what a flag means that is no flag here; empty where nothing does."""
    word = name.replace("_", "-").lower()
    if word in FLAGS:
        return FLAGS[word]
    engine = word.removeprefix("--")
    return f"--engine {engine}" if engine in MODELLED and "--engine" in known else ""


def joined_name(words: Sequence[str]) -> str:
    """The bundled name that words make when they are written as one: ``qwen2.5 7b``."""
    if not 1 < len(words) <= MOST_WORDS:
        return ""
    from memsheet.catalog.names import bundled_match

    return next((one for join in ("-", "") if bundled_match(one := join.join(words))), "")


def is_launch(words: Sequence[str]) -> bool:
    """Whether words start a program, and the first is no file's or folder's name."""
    return words[0] in LAUNCHERS and not Path(words[0]).exists()
