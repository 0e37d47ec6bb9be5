"""What transformers itself would allocate, without allocating it: every parameter of the real model on the
meta device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from memsheet.formulas.states.params import (
    distinct_blocks,
    fold_path_indices,
    layer_stacks,
    parameter_tensors,
)
from memsheet.plan.model import ModelSpec
from memsheet.readers.hf_config import read_hf_config


def meta_model(config: Mapping[str, Any], auto_class: str = "AutoModelForCausalLM") -> Any:
    """The model that ``config`` (a config.json's content) names, built by transformers on the meta device.

    ``auto_class`` is one of the Auto classes, or a model class itself.
    """
    import torch
    import transformers

    values = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(values)
    with torch.device("meta"):
        chosen = getattr(transformers, auto_class)
        return (getattr(chosen, "from_config", None) or chosen._from_config)(built)


def meta_tensors(config: Mapping[str, Any], auto_class: str = "AutoModelForCausalLM") -> dict[str, int]:
    """Parameter name with its indices folded → elements of all parameters under that name; tied ones once,
    zero-sized ones left out.
    """
    found: Counter[str] = Counter()
    for name, parameter in meta_model(config, auto_class).named_parameters():
        found[fold_path_indices(name)] += parameter.numel()
    return +found


def our_tensors(spec: ModelSpec) -> dict[str, int]:
    """The same from our description: embeddings, stacks, final norms, head, towers, extras."""
    found: Counter[str] = Counter()
    for path, weight, times in parameter_tensors(spec):
        found[path] += weight.elements * times
    return +found


def assert_same_tensors(config: Mapping[str, Any], auto_class: str = "AutoModelForCausalLM") -> None:
    """Our reading of ``config`` has exactly the parameters of the real model; a failure lists the names that
    differ.
    """
    real, ours = meta_tensors(config, auto_class), our_tensors(read_hf_config(config))
    wrong = {
        path: (real.get(path), ours.get(path))
        for path in real.keys() | ours.keys()
        if real.get(path) != ours.get(path)
    }
    assert not wrong, f"{config['model_type']}: path → (transformers, ours): {wrong}"
    assert sum(real.values()) == sum(ours.values())


def assert_same_model(name: str, config: Mapping[str, Any]) -> None:
    """As ``assert_same_tensors``, with shapes; every module that our reading names is in the real model."""
    assert_same_tensors(config, name)
    model, spec = meta_model(config, name), read_hf_config(config)
    assert _ours(spec) == _shapes(model)
    assert _modules(spec) <= {fold_path_indices(path) for path, _ in model.named_modules()}


def _shapes(model: Any) -> set[tuple[str, tuple[int, ...]]]:
    return {
        (fold_path_indices(path), tuple(parameter.shape))
        for path, parameter in model.named_parameters()
        if parameter.numel()
    }


def _ours(spec: ModelSpec) -> set[tuple[str, tuple[int, ...]]]:
    return {(path, weight.shape) for path, weight, _ in parameter_tensors(spec) if weight.elements}


def _modules(spec: ModelSpec) -> set[str]:
    """Every module that the description names."""
    found = {norm.path for norm in spec.embeddings.norms} | {tower.path for tower in spec.towers}
    for stack in layer_stacks(spec):
        found |= {
            stack.path,
            *(f"{stack.final_path}.{norm.path}".removeprefix(".") for norm in stack.final_norms),
        }
        for block, _ in distinct_blocks(stack):
            norms = (
                *block.norms,
                *(mixer.qk_norm for mixer in block.mixers if getattr(mixer, "qk_norm", None)),
            )
            shared = getattr(block.feed_forward, "shared", None)
            parts = (*block.mixers, *norms, block.feed_forward, *((shared,) if shared else ()))
            found |= {fold_path_indices(f"{stack.path}.*.{part.path}".removesuffix(".")) for part in parts}
    return found
