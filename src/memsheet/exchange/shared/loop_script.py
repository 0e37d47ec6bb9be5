"""What the text of a script with a training loop of its own says: the model it loads, how it is wrapped, in
which dtypes it computes, what it steps with, and how long and how many its rows are. Nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from memsheet.exchange.shared.built_models import OWN_CODE, built_model_keys
from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.flat_gathers import wrapped_gathers
from memsheet.exchange.shared.further_models import frozen_key, model_loads, own_loss_key
from memsheet.exchange.shared.gathered_outputs import DATA_PARALLEL, DEVICES
from memsheet.exchange.shared.generation_script import generation_sizes, makes_pipeline, pipeline_loads
from memsheet.exchange.shared.lightning_trainer import (
    DRIVES,
    OTHER_STRATEGY,
    lightning_call,
    lightning_keys,
)
from memsheet.exchange.shared.loaded_models import (
    LOADS,
    bitsandbytes_keys,
    from_pretrained_keys,
    open_bits_key,
)
from memsheet.exchange.shared.loop_places import DRIVER
from memsheet.exchange.shared.model_casts import WIDTHS, model_casts
from memsheet.exchange.shared.own_classes import handed_model_words, own_class_key
from memsheet.exchange.shared.peft_configs import ADAPTED, peft_config_keys, with_open_branch
from memsheet.exchange.shared.python_branches import objects_in_use, reachable_calls
from memsheet.exchange.shared.python_config import call_node, named_calls, read_module
from memsheet.exchange.shared.python_module import Module, Tree
from memsheet.exchange.shared.python_values import ASKS_BF16, BASE
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.role_names import (
    RoleValue,
    constant_values,
    flag_values,
    role_value,
)
from memsheet.exchange.shared.row_lengths import (
    drawn_shapes,
    has_whole_rows,
    is_slice_of_rows,
    tokenized_length,
)
from memsheet.exchange.shared.script_places import (
    ASKS_CARD,
    BITS,
    CLASS,
    LIKELY_NAME,
    LINE,
    LOOP,
    NO_PROMPT,
    SCRIPT,
    UNSAID,
    WHOLE,
)
from memsheet.exchange.shared.trainer_names import ARGUMENTS, LIGER, PREPARES, RECOMPUTE
from memsheet.exchange.shared.trainer_script import calls_training, generates_alone, unmade_key
from memsheet.exchange.shared.unsloth_loads import UNSLOTH_LOADS, unsloth_bits
from memsheet.patterns import late_pattern

DEEPSPEED, DIVIDED, MESH = "deepspeed", "divided_weights", "mesh"
FED, SEQUENCE, WHOLE_ROWS = "rows_of_engine", "sequence", "whole_rows"
"""Where DeepSpeed makes the loader, its rows are the configuration's (deepspeed/__init__.py, initialize)."""
STEPS = late_pattern(r"\.backward\(|\.train_batch\(|\.manual_backward\(")
STEPPER = late_pattern(r"\boptimizer\w*\s*=[^=]")
RUNS_OVER = late_pattern(r"\.(?:fit|train|train_model|run|start)\((?!\s*\))")
"""Calls that run something with what they are given: a loop of another file, where this one has none."""
OTHER_LOOP = "the loop that it hands its optimizer and rows to, which another file has"
OWN_GENERATION = "Unsloth's own layers and caches, with which the model generates"
GENERATES = late_pattern(r"\.(?:generate|chat)\(")
FORWARD = late_pattern(r"\bno_grad\(|\binference_mode\(")
"""What a script holds that asks a model for its outputs and keeps nothing of a backward pass."""
OF_TOKENS = late_pattern(r"(?:CausalLM|LMHeadModel|ConditionalGeneration|ImageTextToText)\.from_pretrained$")
"""Classes whose outputs are of every token's vocabulary."""
WHOLE_OUTPUTS = "outputs of every token, which a forward pass that is called itself makes"
OTHER_MODELS = late_pattern(
    r"(?:Peft|Reward|Value|Critic|Ref\w*|Teacher|Vision|CLIP|Embedding)Model\.from_pretrained$"
)
WRAPPERS = {
    "FSDP": "fsdp1", "FullyShardedDataParallel": "fsdp1", "fully_shard": "fsdp2", "DistributedDataParallel": "ddp", "DDP": "ddp",
    "DataParallel": DATA_PARALLEL, "Accelerator": "accelerate",
}  # fmt: skip
INITIALIZES = "deepspeed.initialize"
OPTIMIZERS = {
    "AdamW": ("adamw", "foreach"), "Adam": ("adamw", "foreach"), "FusedAdam": ("adamw", "fused"), "DeepSpeedCPUAdam": ("adamw", None),
    "CPUAdamBuilder": ("adamw", None), "SGD": ("sgd", "foreach"), "Adafactor": ("adafactor", "loop"),
    "AdamW8bit": ("adamw_8bit", "bnb"), "Adam8bit": ("adamw_8bit", "bnb"), "PagedAdamW8bit": ("paged_adamw_8bit", "bnb"),
    "PagedAdam8bit": ("paged_adamw_8bit", "bnb"), "PagedAdamW": ("paged_adamw", "bnb"), "PagedAdamW32bit": ("paged_adamw", "bnb"),
    "Lion": ("lion", "foreach"), "Lion8bit": ("lion_8bit", "bnb"),
}  # fmt: skip
"""Classes by the plan's name and implementation (torch.optim, bitsandbytes.optim, deepspeed.ops,
transformers.optimization).
"""
CHECKPOINTS = (*RECOMPUTE, "apply_activation_checkpointing", "checkpoint_wrapper")


def loop_values(text: str, given: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A script's own loop, with ``script.*`` for how the model is loaded; nothing of a script without one.
    ``given``: the flags that a command starts it with. Raises ValueError for no Python.
    """
    stepped = STEPS.search(text) or DRIVES.search(text)
    handed = not stepped and _hands_over(text)
    steps = stepped or handed
    if (
        not any(one in text for one in ("from_pretrained", "transformers"))
        or not (steps or GENERATES.search(text) or FORWARD.search(text) or makes_pipeline(text))
        or (steps and any(one in text for one in ARGUMENTS))
    ):
        return {}
    module = read_module(text, {}, given)
    if any(one in text for one in ARGUMENTS) and not generates_alone(module):
        return {}
    load, others = model_loads(module) if steps else (None, {})
    if load is None or OTHER_MODELS.search(load[WHOLE]):
        load = next(_model_loads(module), None)
    asked = steps or GENERATES.search(text) or makes_pipeline(text)
    if not asked and (load is None or not OF_TOKENS.search(load[WHOLE]) or calls_training(module)):
        return {}
    others_load = chain(pipeline_loads(module), unsloth_loads(module))
    load = load or next(others_load if not steps else iter(()), None)
    built = built_model_keys(module) if load is None else {}
    elsewhere = _elsewhere_loaded(module, text) if steps and load is None else None
    load = load or elsewhere or ({LINE: 1} if built else None)
    if load is None:
        return {}
    flags, constants = flag_values(module), constant_values(module)
    told: Callable[[str], RoleValue | None] = lambda role: role_value(role, flags, constants)  # noqa: E731
    loading = _loading_keys(module, load, told)
    if built:
        loading.pop("model", None)
    elif elsewhere and loading.get("model"):
        loading[LIKELY_NAME] = f"{loading['model']}, and what another file makes of it is open"
    said = {**loading, **built, **_adapter_keys(module, told), **others}
    said |= own_loss_key(module) if steps else {}
    said |= frozen_key(module) if steps and not ADAPTED & said.keys() else {}
    if any(named_calls(module, ASKS_BF16)):
        said[ASKS_CARD] = True
    said |= {OWN_CODE: OTHER_LOOP} if handed else {} if asked else {OWN_CODE: WHOLE_OUTPUTS}
    if UNSLOTH_LOADS.search(str(load.get(WHOLE, ""))):
        said |= {**unsloth_bits(load), OWN_CODE: OWN_GENERATION}
    made = {
        **_row_sizes(module, told),
        **_precision_keys(module, told),
        **_wrapper_keys(module),
        **_optimizer_keys(module),
        **_recompute_key(module, told),
    }
    made |= _driver_keys(module, load, str(made.get("wrap")), text) if steps else {}
    cast = made.pop("cast", None) or next(model_casts(module), None)
    if cast is not None:
        said["dtype"] = cast
    if made.get(FED):
        made.pop("batch", None)
    if not steps:
        divided = made.pop("wrap", None) == DEEPSPEED
        made.pop(DEEPSPEED, None)
        made |= {
            "task": "infer",
            **({DIVIDED: "by DeepSpeed"} if divided else {}),
            **generation_sizes(module, text, told),
        }
        if made.get("length"):
            made = {at: held for at, held in made.items() if held != NO_PROMPT}
    kind = "loop" if steps else "generation" if asked else "forward pass"
    inline = made.pop(DEEPSPEED, None)
    how = "loaded" if WHOLE in load else "built" if built else "wrapped"
    own = {"reads": f"the {kind} of a model {how} on line {load[LINE]}", **made}
    return {LOOP: own, SCRIPT: said, **({DEEPSPEED: inline} if inline else {})}


def _hands_over(text: str) -> bool:
    """Whether a script makes an optimizer and rows, and gives them to something that runs them."""
    made = "DataLoader(" in text and STEPPER.search(text) is not None
    return made and ("rainer(" in text or RUNS_OVER.search(text) is not None)


def _local_calls(module: Module, *names: str) -> list[Tree]:
    return list(named_calls(module, names, local=True))


def _model_loads(module: Module) -> Iterator[Tree]:
    return (
        held
        for held in named_calls(module, ("from_pretrained",), local=True)
        if LOADS.search(held[WHOLE]) and not OTHER_MODELS.search(held[WHOLE])
    )


def unsloth_loads(module: Module) -> Iterator[Tree]:
    """Calls by which Unsloth loads what then generates, with the model's name where transformers has it; none
    of those that start another engine (unslothai/unsloth 015bdef unsloth/models/loader.py: fast_inference).
    """
    for held in named_calls(module, ("from_pretrained",), local=True):
        if UNSLOTH_LOADS.search(held[WHOLE]) and held.get("fast_inference", False) is False:
            yield {"0": held.get("model_name", UNSET), **held}


def _elsewhere_loaded(module: Module, text: str) -> Tree | None:
    """Of a script whose model another file loads, the call that wraps it."""
    wraps = [
        *_local_calls(module, *WRAPPERS),
        *(held for held in _local_calls(module, "initialize") if held[WHOLE] == INITIALIZES),
    ]
    return {LINE: wraps[-1][LINE]} if wraps and "transformers" in text else None


def _loading_keys(module: Module, load: Tree, told: Callable[[str], RoleValue | None]) -> dict[str, Any]:
    """The model's name, and how it is loaded."""
    name = load.get("0", load.get("pretrained_model_name_or_path"))
    if not isinstance(name, str) or name == UNSET:
        found = told("model")
        name = found.value if found is not None and isinstance(found.value, str) else None
    keys = {at: held for at, held in from_pretrained_keys(load).items() if held != UNSET}
    attention = told("attention")
    if "attention" not in keys and "attn_implementation" in load and attention is not None:
        keys["attention"] = attention.value
    fused = any(_local_calls(module, *LIGER))
    return {
        "dtype": UNSAID,
        **({"model": name} if name else {}),
        **own_class_key(module, load),
        **open_bits_key(module, load),
        **({"fused": True} if fused else {}),
        **keys,
    }


def _adapter_keys(module: Module, told: Callable[[str], RoleValue | None]) -> dict[str, Any]:
    """Adapters and fewer bits, unless a flag switches them off."""
    made: dict[str, Any] = {}
    if not _is_off(told("lora")):
        made |= peft_config_keys(
            lambda *names: (
                {
                    at: one
                    for at, one in held.items()
                    if one != UNSET or at in ("r", "target_modules", "num_virtual_tokens")
                }
                for held in objects_in_use(module, names)
            )
        )
    if not _is_off(told("4bit")) and not _is_off(told("8bit")):
        for held in objects_in_use(module, (BITS,)):
            made |= with_open_branch(BITS, bitsandbytes_keys(held), held)
    if any(reachable_calls(module, PREPARES)):
        made["prepared"] = True
    return {**made, **unmade_key(module)}


def _is_off(found: RoleValue | None) -> bool:
    return found is not None and found.value in (False, 0, "", "none", "None", "no")


def _row_sizes(module: Module, told: Callable[[str], RoleValue | None]) -> dict[str, Any]:
    """Rows of a micro-batch, their length, and how many micro-batches a step has."""
    loaders = _local_calls(module, "DataLoader")  # torch/utils/data/dataloader.py: dataset, batch_size
    counts = (positive_count(held.get("batch_size", held.get("1"))) for held in loaders)
    batch = next(filter(None, counts), None)
    rounds = next(
        (
            held["gradient_accumulation_steps"]
            for held in _local_calls(module, "Accelerator")
            if positive_count(held.get("gradient_accumulation_steps"))
        ),
        None,
    )
    rows, length = _drawn_rows(module)
    sizes = {
        "batch": batch or _stepped_rows(module) or _role_count(told("batch")) or rows, "length": tokenized_length(module) or _role_count(told("length")) or length,
        "accumulation": rounds or _role_count(told("accumulation")), SEQUENCE: _role_count(told(SEQUENCE)),
    }  # fmt: skip
    found = {at: size for at, size in sizes.items() if size is not None}
    whole = found.get("length") is not None and has_whole_rows(module, found["length"])
    return {**found, **({WHOLE_ROWS: True} if whole else {})}


def _stepped_rows(module: Module) -> int | None:
    """Rows of a batch that a loop cuts itself: ``for i in range(0, len(rows), 16): … rows[i : i + 16]``."""
    loops = [
        node.iter
        for node in ast.walk(module.tree)
        if isinstance(node, ast.For) and any(map(is_slice_of_rows, ast.walk(node)))
    ]
    steps = (
        positive_count(held.get("2"))
        for held in _local_calls(module, "range")
        if any(call_node(module, held) is loop for loop in loops)
    )
    return next(filter(None, steps), None)


def _drawn_rows(module: Module) -> tuple[int | None, int | None]:
    """Rows of a batch of tokens that a script draws itself, and their length: the largest of several."""
    drawn = drawn_shapes(module)
    return max(drawn, key=lambda shape: shape[0] * shape[1]) if drawn else (None, None)


def _role_count(found: RoleValue | None) -> int | None:
    return positive_count(found.value) if found is not None else None


def _precision_keys(module: Module, told: Callable[[str], RoleValue | None]) -> dict[str, Any]:
    """What the loop computes in: autocast's dtype, accelerate's word, or a cast of the model."""
    made: dict[str, Any] = {}
    for held in _local_calls(module, "autocast"):
        if held.get("enabled", True) is not False:
            asked = held.get("dtype", held.get("1", "torch.float16"))  # its own on a GPU
            made["autocast"] = WIDTHS.get(str(asked), _word_of_flags(told) or UNSET)
    for held in _local_calls(module, "Accelerator"):
        word = held.get("mixed_precision")
        if isinstance(word, str):
            made["autocast"] = mixed_word(word) if word != UNSET else _word_of_flags(told) or UNSET
    for held in _local_calls(module, "MixedPrecisionPolicy", "MixedPrecision"):
        made |= {
            at: WIDTHS[str(held[name])]
            for at, name in (("gathered", "param_dtype"), ("reduced", "reduce_dtype"))
            if str(held.get(name)) in WIDTHS
        }
    return made


def _word_of_flags(told: Callable[[str], RoleValue | None]) -> str | None:
    for role in ("bf16", "fp16"):
        found = told(role)
        if found is not None and found.value is True:
            return role
    found = told("dtype")
    return mixed_word(str(found.value)) if found is not None else None


def mixed_word(word: str) -> str:
    """A word for mixed precision, of accelerate's, of Lightning's or of a flag, as bf16, fp16 or no."""
    low = word.lower()
    return "bf16" if "bf" in low else "fp16" if "16" in low or "half" in low else "no"


def _wrapper_keys(module: Module) -> dict[str, Any]:
    """What divides the model, or copies it: the surest of the calls."""
    found = {WRAPPERS[held[CLASS]]: held for held in _local_calls(module, *WRAPPERS)}
    engines = [held for held in _local_calls(module, "initialize") if held[WHOLE] == INITIALIZES]
    if engines:
        inline: Mapping[str, Any] = next(
            (
                held[at]
                for held in engines
                for at in ("config", "config_params")
                if isinstance(held.get(at), dict)
            ),
            {},
        )
        fed = any("training_data" in held for held in engines)
        return {"wrap": DEEPSPEED, **({DEEPSPEED: inline} if inline else {}), **({FED: True} if fed else {})}
    surest = ("fsdp2", "fsdp1", "ddp", DATA_PARALLEL, "accelerate")
    wrap = next((one for one in surest if one in found), "none")
    if wrap == DATA_PARALLEL:
        cards = found[wrap].get("device_ids", found[wrap].get("1"))
        return {"wrap": wrap, **({DEVICES: len(cards)} if isinstance(cards, list) and cards else {})}
    either = {DATA_PARALLEL: True} if wrap == "ddp" and DATA_PARALLEL in found else {}
    strategy = found.get(wrap, {}).get("sharding_strategy", found.get(wrap, {}).get("strategy"))
    kept = found.get(wrap, {}).get("reshard_after_forward")
    return {
        "wrap": wrap,
        **either,
        **_mesh_of_axes(module),
        **(
            {"strategy": str(strategy).rpartition(".")[2]}
            if isinstance(strategy, str) and strategy != UNSET
            else {}
        ),
        **({"reshard": kept} if isinstance(kept, bool) else {}),
        **(wrapped_gathers(found[wrap]) if wrap == "fsdp1" else {}),
        **({"offload": offload} if (offload := _offload_of(found.get(wrap, {}))) is not None else {}),
    }


PLUGINS = ("fsdp_plugin", "deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin", "parallelism_config")
"""Arguments of accelerate's driver that divide a model (accelerate 1.15.0 accelerator.py, __init__)."""
COPIED = ("none", "accelerate", "ddp")


def _driver_keys(module: Module, load: Tree, wrap: str, text: str) -> dict[str, Any]:
    """What a driver makes of the loop, Lightning's or accelerate's; and what may divide a model that no call
    of those that are read divides: a plugin that the driver is given, a plan of tensor parallelism that the
    loading call is given (transformers 5.23.0 modeling_utils.py, from_pretrained: tp_plan), a function of a
    package that nobody reads.
    """
    if (driver := lightning_call(module)) is not None:
        return lightning_keys(module, driver)
    driven = {DRIVER: True} if "Accelerator" in text else {}
    if wrap not in COPIED:
        return driven
    given = (at for held in _local_calls(module, "Accelerator") for at in PLUGINS if held.get(at) is not None)
    told = next(given, "") or ("tp_plan" if load.get("tp_plan") is not None else "")
    told = told or handed_model_words(module)
    return {**driven, **({"wrap": "none", OTHER_STRATEGY: told} if told else {})}


def _offload_of(wrapped: Tree) -> bool | str | None:
    """Whether states are kept on the host: what ``fully_shard`` has a policy for, and FSDP a switch
    (torch/distributed/fsdp/_fully_shard/_fsdp_api.py: CPUOffloadPolicy; fsdp/api.py: CPUOffload).
    """
    policy, switch = wrapped.get("offload_policy"), wrapped.get("cpu_offload")
    if _is_instance_of_class(policy, "CPUOffloadPolicy"):
        return True
    if isinstance(switch, dict) and _is_instance_of_class(switch, "CPUOffload"):
        asked = switch.get("offload_params", switch.get("0", False))
        return UNSET if asked == UNSET else asked is True
    return UNSET if UNSET in (policy, switch) else None


def _is_instance_of_class(value: Any, name: str) -> bool:
    """Whether it is what a class of that name makes, imported or not."""
    return isinstance(value, dict) and str(value.get(BASE, value.get(CLASS))).rpartition(".")[2] == name


def _mesh_of_axes(module: Module) -> dict[str, Any]:
    """A mesh of several axes, which divides states over one of them."""
    shapes = [held.get("mesh_shape", held.get("1")) for held in _local_calls(module, "init_device_mesh")]
    several = [shape for shape in shapes if isinstance(shape, list) and len(shape) > 1]
    return {MESH: " x ".join(str(one) for one in several[0])} if several else {}


def _optimizer_keys(module: Module) -> dict[str, Any]:
    """The optimizer, by the class that is made last, and what torch compiles."""
    made = (
        {"compile": True}
        if any(held[WHOLE] == "torch.compile" for held in _local_calls(module, "compile"))
        else {}
    )
    last = max(_local_calls(module, *OPTIMIZERS), key=lambda held: int(held[LINE]), default=None)
    if last is None:
        return made
    name, how = OPTIMIZERS[last[CLASS]]
    if name == "sgd" and last.get("momentum") not in (None, 0, 0.0):
        name = "sgd_momentum"
    how = "fused" if last.get("fused") is True else "loop" if last.get("foreach") is False else how
    return {**made, "optimizer": name, **({"implementation": how} if how else {})}


def _recompute_key(module: Module, told: Callable[[str], RoleValue | None]) -> dict[str, Any]:
    """Whether layers are computed again: as a flag says that is called so, else where a call does it."""
    flag = told("recompute")
    if flag is not None and isinstance(flag.value, bool | int):
        return {"recompute": bool(flag.value)}
    prepares = [  # which switches it on (huggingface/peft 5d602fd src/peft/utils/other.py:158-240)
        held
        for held in reachable_calls(module, PREPARES)
        if held.get("use_gradient_checkpointing", held.get("1", True)) is not False
    ]
    return {"recompute": True} if prepares or any(reachable_calls(module, CHECKPOINTS)) else {}
