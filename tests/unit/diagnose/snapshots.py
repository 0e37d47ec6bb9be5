"""Snapshots made here: by the simulated allocator of timelines, and with stacks as PyTorch has them."""

from __future__ import annotations

import pickle
from typing import Any

from memsheet.allocator.settings import Settings
from memsheet.report.json.memory_viewer import memory_snapshot
from memsheet.sheet import Component, Instant
from memsheet.timeline import Timeline
from memsheet.units import MIB
from timelines import Maker

C, T = Component, Instant
TORCH = "/site-packages/torch/"
STACKS: dict[str, list[tuple[str, int, str]]] = {
    "weights": [(TORCH + "nn/modules/linear.py", 1, "__init__"), ("model.py", 3, "__init__"), ("train.py", 1, "main")],
    "forward": [(TORCH + "nn/functional.py", 5, "linear"), (TORCH + "nn/modules/module.py", 9, "_call_impl"), ("model.py", 7, "forward"), ("train.py", 5, "main")],
    "loss": [(TORCH + "nn/functional.py", 7, "cross_entropy"), ("train.py", 6, "main")],
    "backward": [],
    "states": [(TORCH + "optim/adamw.py", 4, "_init_group"), (TORCH + "optim/optimizer.py", 9, "step"), ("train.py", 8, "main")],
    "kept": [("train.py", 9, "main")],
    "recomputed": [("model.py", 7, "forward"), (TORCH + "utils/checkpoint.py", 8, "recompute_fn"), (TORCH + "autograd/graph.py", 2, "_engine_run_backward")],
}  # fmt: skip
OF_LINE = {"weights": C.PARAMETERS, "states": C.OPTIMIZER_STATES, "forward": C.SAVED_ACTIVATIONS}
WEIGHTS, LAYERS = 12 * MIB, 6


def steps(count: int, *, kept: int = 0, lengths: tuple[int, ...] = ()) -> Timeline:
    """Training steps of six layers. ``kept``: bytes of each step that nobody lets go; ``lengths``: how many
    times longer than the first each step is, instead. The line of a storage names its stack.
    """
    maker = Maker()
    for _ in range(LAYERS):
        maker.take(WEIGHTS, C.PARAMETERS, line="weights")
    for number in range(count):
        scale = lengths[number % len(lengths)] if lengths else 1
        saved = [maker.take(14 * MIB * scale, C.SAVED_ACTIVATIONS, line="forward") for _ in range(LAYERS)]
        loss = maker.take(24 * MIB, C.TEMPORARIES, line="loss")
        gradients = []
        for each in reversed(saved):
            gradients.append(maker.take(WEIGHTS, C.GRADIENTS, line="backward"))
            maker.give(each)
        maker.give(loss)
        if number == 0:
            for _ in range(2 * LAYERS):
                maker.take(WEIGHTS, C.OPTIMIZER_STATES, line="states")
        if kept:
            maker.take(kept, C.TEMPORARIES, line="kept")
        maker.give(*gradients)
    return maker.made()


def pieces(count: int = 24) -> Timeline:
    """Requests that grow, and a small one of each round that stays: what is kept lies in pieces."""
    maker = Maker()
    maker.mark(T.FORWARD)
    for number in range(count):
        large = maker.take((40 + 2 * number) * MIB, C.TEMPORARIES, line="forward")
        maker.give(large)
        maker.take(2 * MIB, C.TEMPORARIES, line="kept")
    return maker.made()


def as_torch_has_it(
    timeline: Timeline, capacity: int | None, settings: Settings | None = None
) -> dict[str, Any]:
    """The snapshot with PyTorch's stacks in place of operations, and without components."""
    found = memory_snapshot(timeline, settings or Settings(), capacity)
    frames = {
        name: [{"filename": f, "line": n, "name": word} for f, n, word in stack]
        for name, stack in STACKS.items()
    }
    for event in found["device_traces"][0]:
        event.pop("category", None)
        event["frames"] = list(_frames_of(event["frames"], frames))
    for segment in found["segments"]:
        for block in segment["blocks"]:
            block["frames"] = list(_frames_of(block["frames"], frames))
    return found


def _frames_of(told: list[dict[str, Any]], frames: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return next((frames[each["filename"]] for each in told if each["filename"] in frames), [])


def pickled(found: dict[str, Any], protocol: int = 4) -> bytes:
    return pickle.dumps(found, protocol)
