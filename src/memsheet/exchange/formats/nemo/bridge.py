"""Megatron-Bridge's recipes in a Python script (``llama3_8b_pretrain_config()``), read as text: the recipe,
and what the script sets on its configuration. It trains with Megatron-Core, as NeMo's recipes do.

Recipes of NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/recipes, one folder a family, h100/*.py;
batches where a recipe says none of recipes/common.py:66-67, precision and optimizer of :87,130.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import MORE, UNSET, Format, Values
from memsheet.exchange.shared.read_only_rows import positive_count, read_elsewhere, read_only_row
from memsheet.frozen import NamedTuple
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.config_references import with_references


VERSION = "Megatron-Bridge"  # of its recipes at commit 067f987d
RECIPE, SEVERAL = "$.bridge_recipe", "$.bridge_recipes"
OVERRIDDEN, NAMED = "a recipe that is not named", "$.checkpoint"
_CALLED = late_pattern(r"\b(\w+?)_pretrain(?:_\d+gpu_h100_bf16)?(?:_(\d+k))?_config\b")
MODEL, TRAIN = "model", "train"
DEGREES = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "vpp": "virtual_pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size",
}  # fmt: skip
LENGTHS = (f"{MODEL}.seq_length", "dataset.seq_length", "dataset.sequence_length")
SHARED, MICRO, STEP, AGAIN = f"{MODEL}.sequence_parallel", f"{TRAIN}.micro_batch_size", f"{TRAIN}.global_batch_size", f"{MODEL}.recompute_granularity"  # fmt: skip


class Recipe(NamedTuple):
    """A model, its degrees, whether sequences are divided too, their length, those of a step and of a
    micro-batch, and what is recomputed.
    """

    model: str
    degrees: Mapping[str, int] = {}
    shared: bool = False
    length: int = 4096
    step: int = 32
    micro: int = 2
    again: str | None = None


RECIPES: Mapping[str, Recipe] = {
    "llama2_7b": Recipe("meta-llama/Llama-2-7b-hf", {"tp": 2}, False, 4096, 512, 1),
    "llama32_1b": Recipe("meta-llama/Llama-3.2-1B", {}, False, 8192, 512, 1),
    "llama32_3b": Recipe("meta-llama/Llama-3.2-3B", {}, False, 8192, 512, 1),
    "llama3_8b": Recipe("meta-llama/Meta-Llama-3-8B", {"cp": 2}, False, 8192, 512, 1),
    "llama3_8b_16k": Recipe("meta-llama/Meta-Llama-3-8B", {"tp": 4, "pp": 2, "cp": 2}, True, 16384, 512, 1),
    "llama3_8b_64k": Recipe("meta-llama/Meta-Llama-3-8B", {"tp": 4, "pp": 2, "cp": 4}, True, 65536, 512, 1),
    "llama3_8b_128k": Recipe("meta-llama/Meta-Llama-3-8B", {"tp": 4, "pp": 2, "cp": 8}, True, 131072, 512, 1),
    "llama3_70b": Recipe("meta-llama/Meta-Llama-3-70B", {"tp": 4, "pp": 4, "vpp": 5, "cp": 2}, True, 8192, 512, 1),
    "llama3_70b_16k": Recipe("meta-llama/Meta-Llama-3-70B", {"tp": 8, "pp": 2, "cp": 2}, True, 16384, 512, 1),
    "llama3_70b_64k": Recipe("meta-llama/Meta-Llama-3-70B", {"tp": 8, "pp": 4, "cp": 8}, True, 65536, 512, 1),
    "llama31_8b": Recipe("meta-llama/Llama-3.1-8B", {"cp": 2}, False, 8192, 512, 1),
    "llama31_70b": Recipe("meta-llama/Llama-3.1-70B", {"tp": 4, "pp": 4, "vpp": 5, "cp": 2}, True, 131072, 512, 1),
    "qwen2_500m": Recipe("Qwen/Qwen2-0.5B"),
    "qwen2_1p5b": Recipe("Qwen/Qwen2-1.5B"),
    "qwen2_7b": Recipe("Qwen/Qwen2-7B", {"tp": 2}),
    "qwen2_72b": Recipe("Qwen/Qwen2-72B", {"tp": 8, "pp": 4}),
    "qwen25_500m": Recipe("Qwen/Qwen2.5-0.5B"),
    "qwen25_1p5b": Recipe("Qwen/Qwen2.5-1.5B"),
    "qwen25_7b": Recipe("Qwen/Qwen2.5-7B", {"tp": 2}),
    "qwen25_14b": Recipe("Qwen/Qwen2.5-14B", {"tp": 4}),
    "qwen25_32b": Recipe("Qwen/Qwen2.5-32B", {"tp": 8, "pp": 2}),
    "qwen25_72b": Recipe("Qwen/Qwen2.5-72B", {"tp": 8, "pp": 4}),
    "qwen3_600m": Recipe("Qwen/Qwen3-0.6B"),
    "qwen3_1p7b": Recipe("Qwen/Qwen3-1.7B"),
    "qwen3_4b": Recipe("Qwen/Qwen3-4B", {"tp": 2}),
    "qwen3_8b": Recipe("Qwen/Qwen3-8B", {"tp": 4}),
    "qwen3_14b": Recipe("Qwen/Qwen3-14B", {"tp": 8}),
    "qwen3_32b": Recipe("Qwen/Qwen3-32B", {"tp": 8, "pp": 2}, again="full"),
    "qwen3_30b_a3b": Recipe("Qwen/Qwen3-30B-A3B", {"tp": 4, "pp": 2, "ep": 4, "etp": 1}, True, again="full"),
    "gemma2_2b": Recipe("google/gemma-2-2b", {"tp": 2}),
    "gemma2_9b": Recipe("google/gemma-2-9b", {"tp": 8}),
    "gemma2_27b": Recipe("google/gemma-2-27b", {"tp": 8, "pp": 2}),
    "gpt_oss_20b": Recipe("openai/gpt-oss-20b", {"tp": 2, "pp": 4, "ep": 4, "etp": 1}, True, 4096, 512, 1),
    "gpt_oss_120b": Recipe("openai/gpt-oss-120b", {"tp": 2, "pp": 4, "ep": 16, "etp": 1}, True, 4096, 512, 1),
}  # fmt: skip
GROUPS = ("model", "train", "dataset", "optimizer", "ddp", "mixed_precision", "peft", "comm_overlap")


def parse_bridge_script(text: str) -> Mapping[str, Any]:
    """Values of the first known recipe that a script names; nothing where there is none. Raises ValueError
    for text that is no Python.
    """
    if "megatron.bridge" not in text:
        return {}
    named = dict.fromkeys("_".join(filter(None, found.groups())) for found in _CALLED.finditer(text))
    known = [name for name in named if name in RECIPES]
    if not known:
        return {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None
    several = {SEVERAL: f"{', '.join(known)} (the first is read)"} if len(known) > 1 else {}
    return {RECIPE: known[0], **dict(_set_places(tree)), **several}


def bridge_overrides(tree: Any) -> Mapping[str, Any] | None:
    """What a YAML puts over a recipe that its launch names (``--config-file``, 067f987d
    scripts/training/README.md); None of any other tree. The model is the checkpoint's, where that names one.
    """
    tree = with_references(tree) if isinstance(tree, Mapping) else {}
    groups = {name: tree.get(name) for name in GROUPS}
    model, train = groups.get(MODEL), groups.get(TRAIN)
    if not isinstance(model, Mapping) or model.keys().isdisjoint(DEGREES.values()):
        return None
    if not isinstance(train, Mapping) or train.keys().isdisjoint(("micro_batch_size", "global_batch_size")):
        return None
    checkpoint = tree.get("checkpoint")
    named = str(checkpoint.get("pretrained_checkpoint") or "") if isinstance(checkpoint, Mapping) else ""
    return {
        **{name: held for name, held in groups.items() if isinstance(held, Mapping)},
        RECIPE: OVERRIDDEN,
        MORE: "of the recipe that it is put over",
        **({NAMED: named} if named else {}),
    }


def _set_places(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Places of a configuration that the script sets, whatever it calls it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            path = ast.unparse(node.targets[0]).partition(".")[2]
            if path.split(".")[0] in GROUPS:
                yield path, node.value.value if isinstance(node.value, ast.Constant) else UNSET


def _read_recipe_name(_: Any, values: Values) -> Mapping[str, Any]:
    """The model, its degrees, batch and length; sixteen bits with copies in fp32, which ranks divide."""
    told = Recipe(str(values.get(NAMED, ""))) if values.get(RECIPE) == OVERRIDDEN else None
    recipe = RECIPES.get(str(values.get(RECIPE)), told)
    if recipe is None:
        return {}
    said = {
        name: values[at] for name, key in DEGREES.items() if values.get(at := f"{MODEL}.{key}") is not None
    }
    degrees = {**recipe.degrees, **said}
    shared, stages = values.get(SHARED, recipe.shared), positive_count(degrees.get("pp", 1)) or 1
    again = values.get(AGAIN, recipe.again)
    return {
        "@model": recipe.model or None, "engine": "megatron", "zero": 1, "precision.name": "megatron-mixed", **{f"mesh.{name}": held for name, held in degrees.items()},
        "sequence_parallel": shared is True and degrees.get("tp", 1) != 1, **({"schedule": "interleaved" if degrees.get("vpp") else "1f1b"} if stages > 1 else {}),
        "seq_len": next((values[at] for at in LENGTHS if values.get(at) is not None), recipe.length), "microbatch": values.get(MICRO, recipe.micro),
        "global_batch": values.get(STEP, recipe.step), "recompute.mode": again if again in ("full", "selective") else "none",
    }  # fmt: skip


PLACES = (*(f"{MODEL}.{key}" for key in DEGREES.values()), *LENGTHS, SHARED, MICRO, STEP, AGAIN)
SOURCE = "src/megatron/bridge/recipes"
KEYS = (
    read_only_row(RECIPE, _read_recipe_name, SOURCE),
    *(read_only_row(at, read_elsewhere, SOURCE) for at in PLACES),
)

FORMAT = Format(
    name="megatron-bridge", file="recipe.py", kind="python", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=frozenset({RECIPE}), parse=parse_bridge_script, by_groups=bridge_overrides,
    program_known=lambda _: False,
    unmodelled={
        SEVERAL: (), "peft": (), "mixed_precision": ("bf16_mixed",), f"{MODEL}.recompute_num_layers": (1,), f"{MODEL}.recompute_modules": (), f"{MODEL}.recompute_method": ("uniform",),
        f"{MODEL}.cpu_offloading": (False,), f"{MODEL}.fine_grained_activation_offloading": (False,), f"{MODEL}.num_layers": (), f"{MODEL}.hidden_size": (), f"{MODEL}.vocab_size": (),
        f"{MODEL}.cuda_graph_impl": ("none",), f"{MODEL}.moe_token_dispatcher_type": (), "ddp.use_distributed_optimizer": (True,), "ddp.use_megatron_fsdp": (False,), "ddp": (),
        "optimizer": (), "optimizer.use_precision_aware_optimizer": (False,), "optimizer.optimizer_cpu_offload": (False,), "ddp.grad_reduce_in_fp32": (True,), "model": (), "train": (), "dataset": (),
    },
    known=frozenset({"model.*", "train.*", "dataset.*", "optimizer.*", "ddp.*", "comm_overlap", "comm_overlap.*", "peft.*", "mixed_precision.*", "$.*"}) - {key.at for key in KEYS},
)  # fmt: skip
