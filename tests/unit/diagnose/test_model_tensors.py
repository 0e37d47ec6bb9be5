"""Tensors of a named model by their sizes: each is found by the function that asked and its own product, and
sizes that are none are not named.
"""

from __future__ import annotations

import random

import pytest
from tests.unit.diagnose.corpus import modern, traced

from memsheet.catalog import find_model
from memsheet.diagnose.message import YES, Term
from memsheet.diagnose.model_tensors import units_of_models
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts
from memsheet.plan.model import ModelSpec
from memsheet.readers.model import read_model
from memsheet.units import GIB, MIB

LLAMA, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
TRAINED = f"{LLAMA} per_device_train_batch_size: 4 max_seq_length: 4096"
WHOLE = 8_030_261_248
PAGE = 2 * MIB


def died_of(size: int, said: str, *functions: str) -> Diagnosis:
    """A death of a request of ``size`` bytes in pages, as a message prints it."""
    pages = -(-size // PAGE) * PAGE
    printed = f"{pages / GIB:.2f} GiB" if pages >= GIB else f"{pages / MIB:.2f} MiB"
    message = modern(printed, "79.25 GiB", "0.10 GiB", "79.00 GiB", "78.00 GiB", "0.02 GiB")
    return diagnose_texts({"log": "\n".join((said, traced(*functions), message))})


def term_of(size: int, said: str, *functions: str) -> Term | None:
    return died_of(size, said, *functions).term


CASES = (
    ("swiglu", TRAINED, (4 * 4096, 14336), 2, "saved_activations"),
    ("forward", TRAINED, (4 * 4096, 14336), 2, "saved_activations"),
    ("forward", TRAINED.replace("_", "-"), (4 * 4096, 4096), 4, "saved_activations"),
    ("repeat_kv", TRAINED, (4 * 4096, 4096), 2, "saved_activations"),
    ("fused_moe", f"{MOE} cutoff_len: 8192", (8192, 8, 2048), 2, "saved_activations"),
    ("fused_moe", f"{MOE} cutoff_len: 32768", (32768, 8, 1536), 2, "saved_activations"),
    ("create_weights", f"Starting to load model {MOE}", (128, 1536, 2048), 2, "parameters"),
    ("fused_linear_cross_entropy_forward", f"{LLAMA} use_liger_kernel: true", (128256, 4096), 2, "gradients"),
    ("backward", LLAMA, (128256, 4096), 2, "gradients"),
    ("_multi_tensor_adamw", LLAMA, (128256, 4096), 4, "temporaries"),
    ("initialize_optimizer_states", f"{LLAMA} --nproc_per_node 8", (WHOLE // 8,), 4, "optimizer_states"),
    ("_configure_zero_optimizer", f"{LLAMA} world_size=4", (WHOLE // 4,), 4, "master_weights"),
    ("_unshard", LLAMA, (218_112_000,), 2, "unsharded_parameters"),
    ("_all_gather_base", LLAMA, (WHOLE,), 2, "unsharded_parameters"),
)  # fmt: skip


@pytest.mark.parametrize(("function", "said", "axes", "width", "component"), CASES)
def test_a_tensor_is_found_by_its_own_size(
    function: str, said: str, axes: tuple[int, ...], width: int, component: str
) -> None:
    size = width
    for axis in axes:
        size *= axis
    term = term_of(size, said, "training_step", function)
    assert term is not None
    assert f"[{', '.join(map(str, axes))}] {'fp32' if width == 4 else 'bf16'}" in term.shape
    assert term.component == component


def test_a_size_that_is_none_is_not_named() -> None:
    rng = random.Random(7)
    sizes = [int(2 ** rng.uniform(25, 35)) for _ in range(40)]
    asked = [(function, said) for function, said, *_ in CASES[:12]]
    terms = [term_of(size, said, function) for size in sizes for function, said in rng.sample(asked, 3)]
    assert sum(term is not None and term.exact for term in terms) <= len(terms) // 20


def test_weights_outside_of_layers_and_all_layers_are_all_weights() -> None:
    whole = {shape.words: shape.elements for shape in units_of_models(LLAMA)}
    spec = _spec_of(LLAMA)
    assert whole["all weights"] == WHOLE
    assert (
        whole["all weights"]
        == whole["the weights outside of layers"] + spec.layers * whole["a layer's weights"]
    )


def _spec_of(name: str) -> ModelSpec:
    entry = find_model(name)
    assert entry is not None
    return read_model(entry["config"], catalog=find_model)


def test_half_the_batch_helps_a_layer_and_no_weight() -> None:
    layer = died_of(4 * 4096 * 14336 * 2, TRAINED, "training_step", "swiglu")
    said = f"{LLAMA} max_seq_length: 3000 use_liger_kernel: true"
    weight = died_of(128256 * 4096 * 2, said, "fused_linear_cross_entropy_forward")
    assert any("half the micro-batch" in cure.change and cure.saves_bytes for cure in layer.cures)
    assert not any(
        cure.helps == YES or (cure.saves_bytes and "half the" in cure.change) for cure in weight.cures
    )
