"""Every formula that gives bytes or elements says what it stands on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from laws import every
from memsheet.questions.explain import formula_modules
from memsheet.references import FORMULAS

NUMBERS = (
    "Count",
    "int",
    "Bytes",
    "dict[str, Count]",
    "tuple[Count, ...]",
    "dict[tuple[Component, str], Count]",
)

# What returns a number and is no formula: it adds up, counts or picks what formulas gave.
EXCEPTIONS = {
    "layers_of_plan.number_of_plans": "counts the plans of a stratum",
    "tapes.bytes_by_path.moment_total_bytes": "adds up bags",
    "tapes.evaluate.entry_bytes": "the product of a recorded shape; the recording cites its operation",
    "tapes.kernel_scratch.kernel_scratch_bytes": "asks the formula of a kernel, which cites its own",
    "engines.transformers.recurrent_operations.scan_bytes": "picks the largest of scans",
    "tapes.evaluate.terms_bytes": "a recorded sum of products; the recording is of the operation itself",
    "model_code.recorded.axes": "names the sizes of a plan",
    "tapes.evaluate.with_products": "names products of axes",
    "serving.kv_cache.cache_bytes": "adds up layers",
    "model_code.transformers.code.end_axes": "names the sizes of a plan and a model",
    "serving.kv_cache.bytes_per_token": "adds up layers",
    "model_code.transformers.losses.chunk_of": "picks the formula of the loss",
    "states.params.parameter_count": (
        "counts the tensors that the readers list, checked against the real code"
    ),
    "states.params.active_parameter_count": "counts tensors",
    "states.params.idle_parameter_count": "counts tensors",
    "graph_captures.chunks_in_flight": "picks the formula of the schedule",
    "graph_captures.every_layer_bytes": "adds up layers",
    "captured_graphs.captured_temporaries": "picks the largest layer",
    "sharding.whole_matrices.dealt_elements": "rounds up the largest shard",
    "runtime.cublas_workspace_bytes": "a figure of the catalogue, which carries its own evidence",
    "states.held_shapes.elements_of": "the product of a shape",
    "states.held.whole_parameter": "the elements of a shape",
    "sharding.partitioned_flow.gathered_elements": "adds up elements",
    "resident_layers.layer_index": "counts layers",
    "model_code.transformers.picture_towers.patches_per_token": "divides two sizes of a config",
    "engines.sglang.free_memory.elementwise_larger": "picks the larger ends",
    "engines.sglang.free_memory.working_memory_bytes": "picks the formula of what is widest",
    "engines.sglang.free_memory.free_before_loading_bytes": "takes off what the device's facts give",
}


def modules() -> Iterator[ModuleType]:
    return map(importlib.import_module, formula_modules())


def numeric() -> dict[str, Callable[..., Any]]:
    """Public functions of the package that return bytes or elements, by module and name."""
    return {
        f"{module.__name__.removeprefix('memsheet.').removeprefix('formulas.')}.{name}": function
        for module in modules()
        if not module.__name__.endswith(".facts")  # data, each with its own source
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        if str(inspect.signature(function).return_annotation) in NUMBERS
    }


def test_the_walk_finds_formulas() -> None:
    assert {
        "sharding.per_parameter_sizes.dim0_shard",
        "serving.kv_cache.kv_elements_per_token",
        "states.optimizers.step_temporaries",
    } <= set(numeric())


@every("name", sorted(numeric()))
def test_a_function_that_returns_bytes_or_elements_cites_its_source(name: str) -> None:
    assert {f"memsheet.formulas.{name}", f"memsheet.{name}"} & {*FORMULAS} or name in EXCEPTIONS


def test_every_published_formula_says_where_it_errs() -> None:
    import memsheet.textbook

    assert all(
        "Where it errs:" in (inspect.getdoc(getattr(memsheet.textbook, name)) or "")
        for name in memsheet.textbook.__all__
    )
    assert {f"memsheet.textbook.{name}" for name in memsheet.textbook.__all__} <= {*FORMULAS}


def test_exceptions_are_still_there_and_cite_nothing() -> None:
    assert [name for name in EXCEPTIONS if f"memsheet.formulas.{name}" in FORMULAS] == []


def test_every_reference_says_where_it_is() -> None:
    list(modules())
    assert all(reference.title and reference.where for reference, *_ in FORMULAS.values())
    assert [name for name, (_, at, _) in FORMULAS.items() if not at] == []
