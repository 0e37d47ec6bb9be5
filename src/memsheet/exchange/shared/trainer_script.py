"""What a training script for transformers' Trainer says in its text: the arguments, and what else of it
changes memory.

Nothing is run. What stands beside the arguments (the model's name and dtype, adapters, quantized loading, its
attention) is read from the calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.built_models import BUILT, built_model_keys
from memsheet.exchange.shared.file_format import UNSET, Format, is_key
from memsheet.exchange.shared.further_models import FURTHER, WEIGHTS, frozen_key, model_loads, own_loss_key
from memsheet.exchange.shared.given_models import models_beside
from memsheet.exchange.shared.loaded_models import (
    HUB_NAME,
    LOADS,
    bitsandbytes_keys,
    from_pretrained_keys,
    model_calls,
    model_name_key,
    open_bits_key,
)
from memsheet.exchange.shared.model_casts import model_casts
from memsheet.exchange.shared.own_classes import own_class_key
from memsheet.exchange.shared.peft_configs import (
    ADAPTED,
    LORA,
    OTHERS,
    OURS,
    READ,
    adapters_over_bits,
    peft_config_keys,
    with_open_branch,
)
from memsheet.exchange.shared.python_branches import (
    calls_at_flag,
    objects_in_use,
    reachable_calls,
    unused_objects,
)
from memsheet.exchange.shared.python_config import call_node, flatten_constructor, named_calls, read_module
from memsheet.exchange.shared.python_module import Module, attribute_path
from memsheet.exchange.shared.python_values import ASKS_BF16
from memsheet.exchange.shared.role_names import constant_values, flag_values, role_value
from memsheet.exchange.shared.row_lengths import USUAL_LENGTH, tokenized_length, trainer_length
from memsheet.exchange.shared.script_environment import script_allocator_key
from memsheet.exchange.shared.script_flags import flags_in_call, known_flags
from memsheet.exchange.shared.script_places import (
    ASKS_CARD,
    BITS,
    BRANCH,
    CLASS,
    COMMAND_FLAGS,
    DEFAULTS,
    INLINE,
    LABELS,
    LIKELY_NAME,
    LINE,
    MODEL_FLAG,
    OF_TRAINER,
    OWN_FIELDS,
    OWN_TRAINER,
    SCOPE,
    SCRIPT,
    SEVERAL,
    UNMADE,
    UNSAID,
    WHOLE,
)
from memsheet.exchange.shared.sentence_script import sentence_keys
from memsheet.exchange.shared.trainer_names import (
    ARGUMENTS,
    LIGER,
    METHODS,
    OWN_LOSS,
    PARSERS,
    PREPARES,
    RECOMPUTE,
    SFT_TRAINER,
    TRAINERS,
    own_trainers,
)
from memsheet.exchange.shared.trl_configurations import OF_LOADING, own_configuration_keys
from memsheet.exchange.shared.unsloth_loads import unsloth_keys
from memsheet.patterns import late_pattern
from memsheet.plan.library_defaults import ADAPTERS_OF_TRL

UNPREPARED = late_pattern(r"skip_prepare_dataset[\"']?\s*[:=]\s*True")
CUTS_TO = ("max_length", "max_seq_length", USUAL_LENGTH)
"""TRL cuts rows as it prepares them: what skips that leaves their length to the script's own collator
(huggingface/trl f2cd577 trl/trainer/sft_trainer.py, _prepare_dataset).
"""


def arguments_of(
    text: str, given: Mapping[str, Any] | None = None, filled: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """The last ``TrainingArguments`` of a script, with ``script.*`` for the rest; nothing where there are
    none. ``given``: the flags that a command starts it with; ``filled``: those of them that are fields of
    arguments that a parser fills. Raises ValueError for no Python.
    """
    if not any(name in text for name in ARGUMENTS):
        return {}
    module = read_module(text, {}, given)
    parsed: list[dict[str, Any]] = []
    made = list(named_calls(module, ARGUMENTS, local=True))
    if not made:
        parsed = list(_parsed_arguments(module))
        made = [{**one, **(filled or {})} for one in parsed]
    if not made or generates_alone(module):
        return {}
    last = max(made, key=lambda one: int(one[LINE]))
    name, places = last[CLASS], {"0": "output_dir"}
    said = {
        places.get(key, key): value
        if (key.endswith(("config", "_kwargs")) or key == INLINE) and isinstance(value, dict)
        else flatten_constructor(value)
        for key, value in last.items()
    }
    said = {key: value for key, value in said.items() if key not in OURS}
    taken = flags_in_call(module, call_node(module, last))
    taken = {at: flag for at, flag in taken.items() if said.get(at) in (UNSET, flag.default)}
    said |= {at: flag.default for at, flag in taken.items()}
    own = own_configuration_keys(name, module, said)
    own, said = _without_unmade_cut(text, own or _older_trainer_keys(module), said)
    beside_it = models_beside(module) if own.get("method") else {}
    said = {key: value for key, value in said.items() if key not in own}
    if "max_seq_length" not in said and (length := tokenized_length(module)):
        own.setdefault("max_length", length)
    if (again := list(reachable_calls(module, RECOMPUTE))) and "gradient_checkpointing" not in said:
        said["gradient_checkpointing"] = UNSET if all(BRANCH in one for one in again) else True
    told = f"{name} of line {last[LINE]}" + (f", the last of {len(made)}" if len(made) > 1 else "")
    beside: dict[str, Any] = (
        {"fused": True}
        if any(held.get(OWN_LOSS, True) is True for held in named_calls(module, LIGER))
        else {}
    )
    beside |= {**_adapter_keys(module), **script_allocator_key(module.tree)}
    if any(named_calls(module, ASKS_BF16)):
        beside[ASKS_CARD] = True
    unsloth = unsloth_keys(module, said, own)
    beside |= _with_model_flag(
        module, unsloth or sentence_keys(module, said) or _loaded_model_keys(module, own)
    )
    if own.get("method"):
        beside, said = _left_to_method(own, beside, said)
    else:
        beside |= own_loss_key(module)
    beside |= {} if ADAPTED & beside.keys() else frozen_key(module)
    if not unsloth and (cast := next(model_casts(module), None)) is not None:
        beside["dtype"] = cast
    if unsloth and not {"bf16", "fp16"} & last.keys():
        beside[ASKS_CARD] = (
            True  # unsloth/models/rl.py: of the dtype that the model was loaded in, the card's
        )
    for held in reachable_calls(module, PREPARES):
        beside |= _prepare_kbit_keys(held, said, quantized=bool(beside.get("quantized")))
    if (
        not unsloth
        and beside.get("quantized")
        and beside.get("lora_rank")
        and any(named_calls(module, (SFT_TRAINER,)))
    ):
        beside["adapter_dtype"] = ADAPTERS_OF_TRL
    if (flag := beside.pop(MODEL_FLAG, None)) is not None:
        taken[f"{SCRIPT}.model"] = flag
    defaults = {
        f"{SCRIPT}.{at}" if at in own else at: f"{flag.name} {flag.line}"
        for at, flag in taken.items()
        if flag.line
    }
    fields = [at for one in parsed for at in one if at not in OURS and at in said]
    beside |= {
        **({OWN_FIELDS: fields} if fields else {}),
        **_several_trainings_key(made),
        **(
            {COMMAND_FLAGS: f"of {name}, which a command fills and none is here"}
            if parsed and given is None
            else {}
        ),
        **({OWN_TRAINER: trainers} if (trainers := own_trainers(text)) else {}),
        **({} if UNMADE in beside else adapters_over_bits(beside)),
    }
    beside |= {OF_TRAINER: beside_it} if beside_it else {}
    return {SCRIPT: {"reads": told, **({DEFAULTS: defaults} if defaults else {}), **own, **beside}, **said}


def _left_to_method(
    own: dict[str, Any], beside: dict[str, Any], said: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stands beside the arguments, and what they say, of a method that tells its further models and what
    it loads them with where the one that trains is there already.
    """
    loading = {OF_LOADING: own.pop(OF_LOADING)} if OF_LOADING in own else {}
    return {at: held for at, held in beside.items() if at not in (FURTHER, WEIGHTS)}, {**said, **loading}


def generates_alone(module: Module) -> bool:
    """Whether a script generates and neither makes a trainer nor calls anything's ``train``: its arguments
    are for something else (LLaMA-Factory's own make its rows with them: hiyouga/LLaMA-Factory ff6d4d1
    scripts/vllm_infer.py).
    """
    return "generate" in _called_names(module) and not calls_training(module)


LEARNS = frozenset({"backward", "train", "fit", "apply_gradients"})
"""What is called of whatever trains, one's own loop too."""


def trains_nothing(text: str) -> bool:
    """Whether it is Python that makes no trainer, calls nothing's ``train`` and runs no backward pass."""
    try:
        module = read_module(text, {})
    except ValueError:
        return False
    named = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    return not calls_training(module) and not named & LEARNS


def calls_training(module: Module) -> bool:
    """Whether a script makes a trainer or calls anything's ``train``."""
    return any(
        name.lower().endswith(("trainer", "train")) or name.startswith("train")
        for name in _called_names(module)
    )


def _called_names(module: Module) -> set[str]:
    paths = [attribute_path(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return {path[-1] for path in paths if path}


def _without_unmade_cut(text: str, *told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a script says, without a length that no row is cut to."""
    unmade = CUTS_TO if UNPREPARED.search(text) else ()
    return ({at: held for at, held in one.items() if at not in unmade} for one in told)


BYTES = (
    CLASS, "per_device_train_batch_size", "max_length", "max_seq_length", "optim", "bf16", "fp16",
    "gradient_checkpointing", "deepspeed", "fsdp", "packing", "use_liger_kernel",
)  # fmt: skip
"""Arguments by which the needs of two trainings of one script differ."""


def _several_trainings_key(made: list[dict[str, Any]]) -> dict[str, Any]:
    """That a script makes several arguments that need different memory, of which the last are read: others
    may be of a training of their own, or stand in another branch.
    """
    kinds = {repr([one.get(at) for at in BYTES]) for one in made}
    if len(kinds) < 2:
        return {}
    lines = ", ".join(str(one[LINE]) for one in sorted(made, key=lambda one: int(one[LINE])))
    return {SEVERAL: f"of lines {lines} (the sheet is of the last)"}


def without_own_fields(form: Format, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a script says, less the fields of its own class that the library does not have."""
    own = said.get(SCRIPT, {}).get(OWN_FIELDS, ())
    kept = {at: held for at, held in said.get(SCRIPT, {}).items() if at != OWN_FIELDS}
    strange = {at for at in own if not is_key(form, at)}
    if DEFAULTS in kept:
        kept[DEFAULTS] = {at: flag for at, flag in kept[DEFAULTS].items() if at not in strange}
    return {
        **({SCRIPT: kept} if kept else {}),
        **{at: held for at, held in said.items() if at != SCRIPT and at not in strange},
    }


def _parsed_arguments(module: Module) -> Iterator[dict[str, Any]]:
    """Arguments that the file leaves to a command line: those of its own class of them, at its defaults, or
    of a parser that is given the library's class.
    """
    flags = known_flags(module)
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and (name := _arguments_named(*node.bases)):
            fields = [held.target for held in node.body if isinstance(held, ast.AnnAssign)]
            names = [held.id for held in fields if isinstance(held, ast.Name) and held.id in flags]
            told = {at: flags[at].default for at in names}
            yield {**told, CLASS: name, LINE: node.lineno, SCOPE: 0, WHOLE: node.name}
            return
    for held in named_calls(module, PARSERS):
        given = call_node(module, held)
        if given is not None and (name := _arguments_named(*_nodes_given(module, given))):
            yield {CLASS: name, LINE: held[LINE], SCOPE: 0, WHOLE: name}


def _nodes_given(module: Module, call: ast.Call) -> Iterator[ast.AST]:
    """What stands in a call, and in the lists that its arguments are names of."""
    yield from ast.walk(call)
    names = {one.id for one in call.args if isinstance(one, ast.Name)}
    for node in ast.walk(module.tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple() | ast.List()) if name in names:
                yield from ast.walk(node.value)


def _arguments_named(*nodes: ast.AST) -> str | None:
    """The class of arguments that one of the nodes names."""
    named = (attribute_path(one)[-1:] for one in nodes if isinstance(one, ast.Name | ast.Attribute))
    return next((one[0] for one in named if one and one[0] in ARGUMENTS), None)


def _labels_key(called: str) -> dict[str, Any]:
    """A model whose head tells labels apart, in place of a vocabulary's tokens."""
    found = LABELS.search(called)
    words = "(the sheet has a head and a loss of the whole vocabulary, which take more)"
    return {"labels": f"of {found[0]} {words}"} if found else {}


def _loaded_model_keys(module: Module, own: dict[str, Any]) -> dict[str, Any]:
    """Which model is loaded, and how: by TRL's trainer where it is given a name, whatever the script loads
    beside (trl/trainer/utils.py, create_model_from_path), or by the script.
    """
    trained = next(
        (
            held
            for held in named_calls(module, TRAINERS, local=True)
            if isinstance(name := held.get("model", held.get("0")), str) and name != UNSET
        ),
        None,
    )
    found, others = model_loads(module)
    if found is None or not LOADS.search(found[WHOLE]):
        found = next(model_calls(module), None)
    if trained is None and found is not None:
        return {
            **others,
            "dtype": UNSAID,
            **_labels_key(found[WHOLE]),
            **own_class_key(module, found),
            **open_bits_key(module, found),
            **model_name_key(module, found, ("0", "pretrained_model_name_or_path")),
            **from_pretrained_keys(found),
        }
    if trained is None:
        return built_model_keys(module)
    initial = own.pop(OF_LOADING) if isinstance(own.get(OF_LOADING), Mapping) else {}
    return {
        **others,
        "dtype": "float32",
        **model_name_key(module, trained, ("model", "0")),
        **from_pretrained_keys(initial),
    }


def _with_model_flag(module: Module, loaded: Mapping[str, Any]) -> dict[str, Any]:
    """What is loaded; where the text does not tell which model that is, the one that a flag names, or a
    constant that is called so, and that the script may make another of it.
    """
    if any(at == "model" or at.startswith(BUILT) for at in loaded):
        return dict(loaded)
    told = role_value("model", flag_values(module), constant_values(module))
    if told is None or not isinstance(told.value, str) or not told.value or told.value == UNSET:
        return dict(loaded)
    given = told.name.startswith("--") and not told.line
    if not given and not HUB_NAME.fullmatch(told.value):
        return dict(loaded)
    words = f"{told.value} of {told.name}, and what is loaded is open"
    return {**loaded, "model": told.value, LIKELY_NAME: words}


def _older_trainer_keys(module: Module) -> dict[str, Any]:
    """Of a script that gives a trainer of TRL's the Trainer's own arguments, as releases before 0.13 take
    them: its method, and the length that stands among the trainer's arguments; nothing of any other.
    """
    given = next(named_calls(module, TRAINERS[TRAINERS.index(SFT_TRAINER) :], local=True), None)
    if given is None:
        return {}
    method = METHODS.get(f"{given[CLASS].removesuffix('Trainer')}Config")
    return {**({"method": method} if method else {}), **trainer_length(given, method)}


def _adapter_keys(module: Module) -> dict[str, Any]:
    """Adapters and the bits of their base, as far as they are made."""
    found = peft_config_keys(lambda *names: objects_in_use(module, names))
    for held in objects_in_use(module, (BITS,)):
        found |= with_open_branch(BITS, bitsandbytes_keys(held), held)
    return {**found, **unmade_key(module)}


def unmade_key(module: Module) -> dict[str, Any]:
    """Adapters and fewer bits that a script makes once a flag is given, and not at its default, or whose
    configuration it makes and gives to nothing.
    """
    flags = calls_at_flag(module, (LORA, BITS))
    told = [f"{name} of {flag}, which nobody gives here" for name, flag in flags.items()]
    unused = unused_objects(module, (*READ, *OTHERS, BITS))
    told += [f"{name} of line {line}, which nothing in the script takes" for name, line in unused.items()]
    return {UNMADE: "; ".join(told)} if told else {}


def _prepare_kbit_keys(held: Mapping[str, Any], said: dict[str, Any], *, quantized: bool) -> dict[str, Any]:
    """What peft does to a base before it trains: it casts what is not quantized to fp32 and, of a quantized
    one, switches recompute on unless told otherwise, whatever the arguments say (huggingface/peft 5d602fd
    src/peft/utils/other.py:158-240).
    """
    recompute = held.get("use_gradient_checkpointing", held.get("1", True))
    if quantized and recompute is not False:
        said["gradient_checkpointing"] = True if recompute is True else UNSET
    return {"prepared": True}
