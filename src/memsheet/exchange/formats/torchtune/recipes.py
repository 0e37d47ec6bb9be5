"""What a recipe of torchtune needs beside the plan: the builder of a model, its tokenizer and its files, as
the configurations that it ships have them. Paths are of pytorch/torchtune at bd2a0fc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.trainers import plain_recompute
from memsheet.frozen import NamedTuple

FOLDER = "/tmp"  # noqa: S108 as every configuration of torchtune's own
ATTENTION_TARGETS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
"""Linear layers of attention by torchtune's names (torchtune/modules/attention.py)."""
FED_TARGETS, HEAD_TARGET = ("gate_proj", "up_proj", "down_proj"), "lm_head"


class Builder(NamedTuple):
    """A model that torchtune builds. ``named``: the last part of its names on the hub; ``files``: how many
    files of weights it has there.
    """

    named: re.Pattern[str]
    component: str
    family: str
    files: int


def _builder(named: str, component: str, family: str, files: int) -> Builder:
    return Builder(re.compile(named, re.IGNORECASE), component, family, files)


BUILDERS = (
    _builder(r"Llama-2-7b(?:-chat)?-hf", "llama2.llama2_7b", "LLAMA2", 2),
    _builder(r"Llama-2-13b(?:-chat)?-hf", "llama2.llama2_13b", "LLAMA2", 3),
    _builder(r"Llama-2-70b(?:-chat)?-hf", "llama2.llama2_70b", "LLAMA2", 15),
    _builder(r"(?:Meta-)?Llama-3-8B(?:-Instruct)?", "llama3.llama3_8b", "LLAMA3", 4),
    _builder(r"(?:Meta-)?Llama-3-70B(?:-Instruct)?", "llama3.llama3_70b", "LLAMA3", 30),
    _builder(r"(?:Meta-)?Llama-3\.1-8B(?:-Instruct)?", "llama3_1.llama3_1_8b", "LLAMA3", 4),
    _builder(r"(?:Meta-)?Llama-3\.1-70B(?:-Instruct)?", "llama3_1.llama3_1_70b", "LLAMA3", 30),
    _builder(r"(?:Meta-)?Llama-3\.1-405B(?:-Instruct)?", "llama3_1.llama3_1_405b", "LLAMA3", 191),
    _builder(r"Llama-3\.3-70B-Instruct", "llama3_3.llama3_3_70b", "LLAMA3", 30),
    _builder(r"Qwen2-7B(?:-Instruct)?", "qwen2.qwen2_7b", "QWEN2", 4),
    *(
        _builder(rf"Qwen2\.5-{size}B{name}", f"qwen2_5.qwen2_5_{size}b_{kind}", "QWEN2", files)
        for size, files in ((7, 4), (14, 8), (32, 17), (72, 37))
        for name, kind in (("", "base"), ("-Instruct", "instruct"))
    ),
)
"""torchtune/models/*/_model_builders.py, with the files that recipes/configs count."""
_TOKENIZERS = {
    "LLAMA2": ("torchtune.models.llama2.llama2_tokenizer", {"path": "tokenizer.model"}),
    "LLAMA3": ("torchtune.models.llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}),
    "QWEN2": ("torchtune.models.qwen2.qwen2_tokenizer", {"path": "vocab.json", "merges_file": "merges.txt"}),
}


def builder_of(asked: Values) -> Builder | None:
    """The builder of the model that is asked for; None where torchtune has none whose layers are written
    down.
    """
    name = str(asked.get("@model", "")).rpartition("/")[2]
    return next((one for one in BUILDERS if one.named.fullmatch(name)), None)


def checkpoint_folder(asked: Values) -> str | None:
    """Where `tune download` puts the model (torchtune/_cli/download.py)."""
    name = str(asked.get("@model", "")).rpartition("/")[2]
    return f"{FOLDER}/{name}" if builder_of(asked) else None


def builder_path(asked: Values) -> str | None:
    """The builder's name, with its adapter's and four bits' where they are asked for."""
    found = builder_of(asked)
    if found is None:
        return None
    package, _, name = found.component.partition(".")
    four = asked.get("quantization.weights") == "nf4"
    prefix = ("qlora_" if four else "lora_") if asked.get("adapter.rank") else ""
    return f"torchtune.models.{package}.{prefix}{name}"


def attention_targets(asked: Values) -> list[str] | None:
    """Layers of attention beside which the adapter stands, in torchtune's order."""
    if not asked.get("adapter.rank"):
        return None
    return [own for name, own in ATTENTION_TARGETS.items() if name in asked.get("adapter.targets", ())]


def _unknown_targets(asked: Values) -> list[str]:
    """Targets that no switch says: the three layers of a feed-forward are one."""
    named = set(asked.get("adapter.targets", ()))
    fed = named.intersection(FED_TARGETS)
    alone = fed if len(fed) < len(FED_TARGETS) else set()
    return sorted((named - {*ATTENTION_TARGETS, *FED_TARGETS, HEAD_TARGET}) | alone)


def recipe_problems(asked: Values) -> Iterator[Problem]:
    """What its recipes and builders cannot do."""
    model = asked.get("@model")
    if builder_of(asked) is None:
        hint = "a Llama 2, 3, 3.1 or 3.3 or a Qwen 2 or 2.5 of 7B parameters or more, by its name on the hub"
        yield Problem(field="model", value=model, reason="has no builder that is known", hint=hint)
    if unknown := _unknown_targets(asked):
        reason = f"holds {', '.join(unknown)}, which torchtune adapts not or only with others"
        hint = "q_proj, k_proj, v_proj, o_proj; gate_proj, up_proj and down_proj together; lm_head"
        yield Problem(field="adapter.targets", value=asked["adapter.targets"], reason=reason, hint=hint)
    if asked.get("offload.activations") and asked.get("recompute.mode") != "full":
        reason = "is refused by torchtune's recipes without recompute of whole layers"
        yield Problem(field="offload.activations", value=True, reason=reason, hint="recompute full")
    host = [asked.get(f"offload.{name}", 0) for name in ("optimizer", "parameters")]
    if any(host) and (host != [1, 1] or asked.get("mesh.dp_shard", 1) == 1):
        reason = "is all states or none, and of several GPUs alone (fsdp_cpu_offload)"
        yield Problem(
            field="offload.optimizer", value=host[0], reason=reason, hint="--offload optimizer,parameters"
        )


def recomputes_layers(asked: Values) -> bool:
    return asked.get("recompute.mode") == "full" and plain_recompute(asked)


def required_recipe_values(asked: Values) -> Mapping[str, Any]:
    """What a recipe stops without (recipes/{full,lora}_finetune_*.py), with data and a learning rate that are
    stand-ins.
    """
    found = builder_of(asked)
    tokenizer, files = _TOKENIZERS[found.family] if found else ("", {})
    folder = checkpoint_folder(asked)
    adapted = (
        {"model.lora_alpha": asked["adapter.rank"]}
        if asked.get("adapter.rank")
        else {"optimizer_in_bwd": False}
    )
    return {
        "output_dir": "output",
        "tokenizer._component_": tokenizer,
        **{f"tokenizer.{name}": f"{folder}/{file}" for name, file in files.items()},
        **adapted,
        "checkpointer._component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpointer.checkpoint_files.filename_format": "model-{}-of-{}.safetensors",
        "checkpointer.checkpoint_files.max_filename": f"{found.files if found else 0:05}",
        "checkpointer.recipe_checkpoint": None,
        "checkpointer.output_dir": "output",
        "checkpointer.model_type": found.family if found else "",
        "dataset._component_": "torchtune.datasets.alpaca_cleaned_dataset",
        "optimizer.lr": 2e-5,
        "lr_scheduler._component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "lr_scheduler.num_warmup_steps": 100,
        "metric_logger._component_": "torchtune.training.metric_logging.DiskLogger",
        "metric_logger.log_dir": "output/logs",
        **_PLAIN_VALUES,
    }


_PLAIN_VALUES: Mapping[str, Any] = {
    "resume_from_checkpoint": False, "seed": None, "shuffle": True, "epochs": 1, "max_steps_per_epoch": None, "clip_grad_norm": None, "compile": False,
    "log_level": "INFO", "device": "cuda",
}  # fmt: skip
