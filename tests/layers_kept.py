"""What one layer of a model keeps for backward, tensor by tensor, for tests of sparse and recurrent
families.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from memsheet.formulas.activations import run_config_of
from memsheet.formulas.model_code import model_code
from memsheet.formulas.recordings import record_block
from memsheet.formulas.tapes.evaluate import Axes, entry_bytes
from memsheet.formulas.tapes.tape import Tape
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import Block
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request


def blocks(config: dict[str, Any]) -> list[Block]:
    (stack,) = read_hf_config(config).stacks
    return [block for run in stack.runs for _ in range(run.count) for block in run.pattern]


def made(config: dict[str, Any], layer: int = 0, **asked: Any) -> dict[str, int]:
    """Bytes of every tensor of a layer, by name, whether they stay or not."""
    tape, axes = _layer_tape(config, layer, asked)
    return _bytes_by_name(tape, axes, range(len(tape.entries)))


def kept(config: dict[str, Any], layer: int = 0, **asked: Any) -> dict[str, int]:
    """Bytes that a layer saves besides its input, by name."""
    tape, axes = _layer_tape(config, layer, asked)
    return _bytes_by_name(tape, axes, tape.saved - tape.outputs - tape.handed)


def _layer_tape(config: dict[str, Any], layer: int, asked: dict[str, Any]) -> tuple[Tape, Axes]:
    model = read_hf_config(config)
    request = {
        "engine": "transformers",
        "precision.name": "bf16-pure",
        "seq_len": 64,
        "microbatch": 2,
        "attention": "sdpa",
        **asked,
    }
    plan = resolve_request(request, model).plan
    engine = find_engine(plan.engine)
    assert engine is not None
    code, block = model_code(engine.layers), blocks(config)[layer]
    how = replace(
        code.block_numerics(block, plan, plan.training.shape, run_config_of(plan, engine)),
        several=plan.training.microbatch > 1,
    )
    return record_block(block, how), code.axes(block, plan, plan.training.shape)


def _bytes_by_name(tape: Tape, axes: Axes, indices: Iterable[int]) -> dict[str, int]:
    held: dict[str, int] = {}
    for index in indices:
        entry = tape.entries[index]
        held[entry.path] = held.get(entry.path, 0) + int(entry_bytes(entry, axes))
    return held


def under(held: dict[str, int], prefix: str) -> int:
    """Bytes of what a module and its parts keep."""
    return sum(size for path, size in held.items() if path.startswith(prefix))
