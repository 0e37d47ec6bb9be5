"""NeMo 2's recipes in a Python script (``llm.llama3_8b.finetune_recipe(num_nodes=1)``), or as a command
(``nemo llm pretrain --factory llama3_8b trainer.num_nodes=2``), read as text: the recipe, its arguments, and
what is set on it.

It trains with Megatron-Core: sixteen bits, sums and copies in fp32, an optimizer that ranks divide.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any

from memsheet.exchange.formats.nemo.recipes import RECIPES, RECOMPUTED, TUNED_BATCH, Degrees, Recipe
from memsheet.exchange.shared.file_format import UNSET, Format, Values
from memsheet.exchange.shared.launched_script import filled_commands
from memsheet.exchange.shared.python_config import named_calls, read_module
from memsheet.exchange.shared.python_module import Module
from memsheet.exchange.shared.read_only_rows import positive_count, read_elsewhere, read_only_row
from memsheet.exchange.shared.script_places import WHOLE
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.adapter_targets import LINEAR_MODULES

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import plain_value


VERSION = "NeMo 2"  # of its recipes at commit 8cfedd7
RECIPE, GOAL, SEVERAL, PASSED = "$.recipe", "$.goal", "$.recipes", "$.changed_by"
GOALS = {"pretrain_recipe": "pretrain", "finetune_recipe": "finetune"}
FACTORY = late_pattern(r"(?:llm\.)?(\w+)(?:\((.*)\))?", re.DOTALL)
S, D, C = "trainer.strategy", "data", "model.config"
OVER = {
    "tp": f"{S}.tensor_model_parallel_size", "pp": f"{S}.pipeline_model_parallel_size", "vpp": f"{S}.virtual_pipeline_model_parallel_size",
    "cp": f"{S}.context_parallel_size", "sp": f"{S}.sequence_parallel", "ep": f"{S}.expert_model_parallel_size", "etp": f"{S}.expert_tensor_parallel_size",
}  # fmt: skip
LENGTHS, MICRO, STEP, NODES, DEVICES = (f"{D}.seq_length", f"{C}.seq_length", "seq_length"), f"{D}.micro_batch_size", f"{D}.global_batch_size", ("trainer.num_nodes", "num_nodes"), ("trainer.devices", "num_gpus_per_node")  # fmt: skip
SCHEME, RANK, TARGETS, GRANULARITY = (
    "peft_scheme",
    "peft.dim",
    "peft.target_modules",
    f"{C}.recompute_granularity",
)
MOST_ARGUMENTS = 4000


def parse_recipe_text(text: str) -> Mapping[str, Any]:
    """Values of the first known recipe that a text calls; nothing where there is none. Raises ValueError for
    text that is no Python.
    """
    if "nemo llm" in text and (found := _factory_values(text)):
        return found
    if "_recipe(" not in text or "nemo" not in text:
        return {}
    module = read_module(text, {})
    calls = [
        found for call in named_calls(module, GOALS, local=True) if (found := _called_recipe(call, module))
    ]
    if not calls:
        return {}
    several = {SEVERAL: f"{len(calls)} (the first is read)"} if len(calls) > 1 else {}
    changed = sorted(set(_functions_given_recipes(module.tree)))
    passed = {PASSED: f"{', '.join(changed)}, which is not read"} if changed else {}
    return {**calls[0], **dict(_set_places(module)), **several, **passed}


def _called_recipe(call: Mapping[str, Any], module: Module) -> dict[str, Any]:
    """A call of a recipe by its arguments; the name stands before it, or in what was imported."""
    *before, goal = str(call[WHOLE]).split(".")
    path = (
        [*before[:-1], *module.imported.get(before[-1], before[-1]).split(".")]
        if before
        else module.imported.get(goal, "").split(".")[:-1]
    )
    name = next((part for part in reversed(path) if part in RECIPES), None)
    given = {at: held for at, held in call.items() if at.isidentifier() and not iskeyword(at)}
    return {RECIPE: name, GOAL: GOALS[goal], **given} if name else {}


HARMLESS = ("run", "add", "main", "dryrun", "print", "Partial", "pretrain", "finetune")
"""Calls that are given a recipe to run it (nemo_run)."""


def _functions_given_recipes(tree: ast.Module) -> Iterator[str]:
    """Functions that are given a recipe by its name and may set anything on it."""
    named = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and ast.unparse(node.value.func).rpartition(".")[2] in GOALS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(
            isinstance(one, ast.Name) and one.id in named for one in node.args
        ):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name not in HARMLESS:
                yield name


def _set_places(module: Module) -> Iterator[tuple[str, Any]]:
    """Places of a recipe that the script sets, whatever it calls the recipe; of what is put in the place of a
    whole group, the arguments.
    """
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        path = ast.unparse(node.targets[0]).partition(".")[2]
        if path.split(".")[0] in GROUPS:
            yield path, _constant_value(node.value)
            named = node.value.keywords if isinstance(node.value, ast.Call) else []
            yield from ((f"{path}.{one.arg}", _constant_value(one.value)) for one in named if one.arg)


GROUPS = ("trainer", "data", "model", "peft", "optim")


def _constant_value(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else UNSET


def _factory_values(text: str) -> dict[str, Any]:
    """What ``nemo llm`` is given: a recipe with its arguments, and places that are set on it."""
    for words in filled_commands(text):
        at = next((at for at in range(len(words) - 2) if words[at : at + 2] == ["nemo", "llm"]), None)
        goal = words[at + 2] if at is not None else ""
        if goal not in GOALS.values() or "--factory" not in words[:-1]:
            continue
        factory = FACTORY.fullmatch(words[words.index("--factory") + 1])
        if factory is None or factory[1] not in RECIPES:
            continue
        over = (word.partition("=") for word in words if "=" in word and not word.startswith("-"))
        places = {name: plain_value(held) for name, _, held in over if "(" not in name}
        return {RECIPE: factory[1], GOAL: goal, **_factory_arguments(factory[2] or ""), **places}
    return {}


def _factory_arguments(text: str) -> dict[str, Any]:
    """Arguments by name, where they are plain values."""
    try:
        call = ast.parse(f"f({text[:MOST_ARGUMENTS]})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    named = call.keywords if isinstance(call, ast.Call) else []
    return {
        one.arg: one.value.value if isinstance(one.value, ast.Constant) else UNSET for one in named if one.arg
    }


def _recipe_of(values: Values) -> Recipe:
    return RECIPES[str(values[RECIPE])]


def _pretrains(values: Values) -> bool:
    return values.get(GOAL) == "pretrain"


def _tunes_adapter(values: Values) -> bool:
    """LoRA unless another scheme, or none, is said."""
    scheme = str(values.get(SCHEME, "lora") or "none").lower()
    return not _pretrains(values) and scheme in ("lora", "dora")


def _own_degrees(values: Values) -> Degrees:
    recipe = _recipe_of(values)
    if _pretrains(values):
        return recipe.degrees
    return recipe.lora if _tunes_adapter(values) else recipe.whole


def _first_value(values: Values, places: tuple[str, ...], usual: Any) -> Any:
    return next((values[at] for at in places if values.get(at) is not None), usual)


def _read_recipe_name(_: Any, values: Values) -> Mapping[str, Any]:
    """The model, its degrees and precision, and an optimizer that ranks divide but with LoRA."""
    named = values.get(RECIPE)
    if not isinstance(named, str) or named not in RECIPES:
        return {}
    recipe, degrees = _recipe_of(values), dict(_own_degrees(values))
    degrees |= {name: values[at] for name, at in OVER.items() if values.get(at) is not None}
    shared = degrees.pop("sp", False)
    stages = positive_count(degrees.get("pp", 1)) or 1
    return {
        "@model": recipe.model, "engine": "megatron", "zero": int(not (_tunes_adapter(values) and recipe.undivided)), "precision.name": "megatron-mixed",
        **{f"mesh.{name}": held for name, held in degrees.items()}, "sequence_parallel": shared is True and degrees.get("tp", 1) != 1,
        **({"schedule": "interleaved" if degrees.get("vpp") else "1f1b"} if stages > 1 else {}), **_read_batch(values), **_read_ranks(values), **_read_adapter(values),
    }  # fmt: skip


def _read_batch(values: Values) -> dict[str, Any]:
    """Sequences of a pass and a step, no longer than the data has them where they are tuned unpacked."""
    length, step, micro = _recipe_of(values).batch[:3] if _pretrains(values) else TUNED_BATCH
    packed = values.get("packed_sequence") is True
    step = 8 if packed and not _pretrains(values) else step
    kind = {} if _pretrains(values) or packed else {"?seq_len_kind": "maximum"}
    return {
        "seq_len": _first_value(values, LENGTHS, length),
        "microbatch": values.get(MICRO, micro),
        "global_batch": values.get(STEP, step),
        **kind,
    }


def _read_ranks(values: Values) -> dict[str, Any]:
    recipe = _recipe_of(values)
    nodes = recipe.batch[3] if _pretrains(values) else recipe.nodes[_tunes_adapter(values)]
    nodes, each = _first_value(values, NODES, nodes), _first_value(values, DEVICES, 8)
    both = positive_count(nodes) and positive_count(each)
    return {"@nodes": nodes, "@per_node": each, "@gpus": nodes * each} if both else {}


def _read_adapter(values: Values) -> dict[str, Any]:
    """LoRA on the linear layers of attention and the feed-forward (peft/lora.py:674)."""
    if not _tunes_adapter(values):
        return {}
    dora = {"adapter.kind": "dora"} if str(values.get(SCHEME)).lower() == "dora" else {}
    return {
        "adapter.rank": values.get(RANK, _recipe_of(values).rank),
        "adapter.targets": [LINEAR_MODULES],
        **dora,
    }


def _read_granularity(value: Any, values: Values) -> Mapping[str, Any]:
    if value == BY_RECIPE:
        return (
            {"recompute.mode": "full"}
            if _pretrains(values) and values.get(RECIPE) in RECOMPUTED
            else {"recompute.mode": "none"}
        )
    return {"recompute.mode": value if value in ("full", "selective") else "none"}


BY_RECIPE = "the recipe's"
PLACES = (*OVER.values(), *LENGTHS, MICRO, STEP, *NODES, *DEVICES, SCHEME, RANK, "packed_sequence", GOAL)
R = "nemo/collections/llm/recipes"
KEYS = (
    read_only_row(RECIPE, _read_recipe_name, R), read_only_row(GRANULARITY, _read_granularity, R, BY_RECIPE),
    *(read_only_row(at, read_elsewhere, R) for at in PLACES),
)  # fmt: skip

FORMAT = Format(
    name="nemo-recipe", file="recipe.py", kind="python", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=frozenset({RECIPE}), parse=parse_recipe_text,
    own_processes=True, program_known=lambda _: False,
    unmodelled={
        SEVERAL: (), PASSED: (), "performance_mode": (False,), TARGETS: (), "trainer.plugins": (), "trainer.plugins.fp8": (), "trainer.plugins.grad_reduce_in_fp32": (True,), "trainer.strategy.fsdp": (),
        "model.config.recompute_num_layers": (1,), "model.config.recompute_modules": (), "model.config.cpu_offloading": (False,), "optim.config.use_distributed_optimizer": (),
        "model.config.num_layers": (), "model.config.hidden_size": (), "model.config": (), "trainer.strategy": (), **dict.fromkeys(GROUPS, ()),
        "model.config.moe_token_dispatcher_type": (), "model.config.enable_cuda_graph": (False,),
    },
    known=frozenset({"dir", "name", "fn", "tokenizer", "trainer.*", "data.*", "model.*", "peft.*", "optim.*", "log.*", "resume.*", "$.*"}) - {key.at for key in KEYS},
)  # fmt: skip
