"""Timelines made by hand, for tests of what is drawn and written of them."""

from __future__ import annotations

from hypothesis import strategies as st

from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark, Storage, Timeline
from memsheet.units import GIB, MIB

C, T = Component, Instant
LAYERS = "model.layers.*."
LINEAR = ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")


class Maker:
    """Writes a timeline down event by event."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []

    def take(
        self,
        size: int,
        component: Component,
        path: str = "",
        op: str = "aten.empty",
        *,
        stream: int = 0,
        line: str = "",
    ) -> int:
        self.storages.append(Storage(size, component, path, op, stream, line))
        self.events.append(len(self.storages) - 1)
        return self.events[-1]

    def give(self, *numbers: int) -> None:
        self.events += [~number for number in numbers]

    def mark(self, instant: Instant) -> None:
        self.marks.append(Mark(len(self.events), instant))

    def made(self) -> Timeline:
        return Timeline(storages=tuple(self.storages), events=tuple(self.events), marks=tuple(self.marks))


def training(*, layers: int = 8, operations: int = 6, microbatches: int = 1) -> Timeline:
    """A step that holds 3 GiB of states, fills up in forward, peaks at 9.25 GiB + 2 MiB in the loss, and
    empties in backward.
    """
    maker = Maker()
    for _ in range(layers):
        for name in LINEAR:
            maker.take(GIB // (3 * layers), C.PARAMETERS, LAYERS + name)
            maker.take(2 * GIB // (3 * layers), C.OPTIMIZER_STATES, LAYERS + name)
    maker.take(3 * GIB - sum(s.bytes for s in maker.storages), C.PARAMETERS, "lm_head")
    maker.take(2 * MIB, C.INPUTS, "input_ids")
    for _ in range(microbatches):
        _microbatch(maker, layers, operations)
    maker.mark(T.OPTIMIZER_STEP)
    scratch = [maker.take(MIB, C.TEMPORARIES, "optimizer", "aten._foreach_sqrt") for _ in range(4)]
    maker.give(*scratch, *(n for n, s in enumerate(maker.storages) if s.component is C.GRADIENTS))
    return maker.made()


def _microbatch(maker: Maker, layers: int, operations: int) -> None:
    maker.mark(T.FORWARD)
    saved = []
    for _ in range(layers):
        for _ in range(operations):
            hidden = maker.take(GIB // 64, C.TEMPORARIES, LAYERS + "mlp.act_fn", "aten.silu")
            size = 2 * GIB // (layers * operations)
            saved.append(
                maker.take(
                    size, C.SAVED_ACTIVATIONS, LAYERS + "mlp.up_proj/output", "aten.mm", line="train.py:42"
                )
            )
            maker.give(hidden)
    saved.append(
        maker.take(2 * GIB - sum(maker.storages[n].bytes for n in saved), C.SAVED_ACTIVATIONS, "model.norm")
    )
    maker.mark(T.LOSS)
    logits = maker.take(GIB + GIB // 4, C.SAVED_ACTIVATIONS, "lm_head/output", "aten.mm")
    softmax = maker.take(3 * GIB, C.TEMPORARIES, "loss/fp32", "aten._log_softmax.default", line="train.py:43")
    maker.give(softmax)
    maker.mark(T.BACKWARD)
    maker.give(logits)
    first = not any(s.component is C.GRADIENTS for s in maker.storages)
    for number in reversed(saved):
        maker.give(number)
        if first:
            maker.take(GIB // (layers * operations + 1), C.GRADIENTS, LAYERS + "mlp.up_proj", "aten.mm")


PEAK_BYTES = 9 * GIB + GIB // 4 + 2 * MIB


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any timeline with a steady step: allocations of a few sizes, components and streams, released in any
    order, or never.
    """
    maker, live = Maker(), list[int]()
    steps = draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=60))
    begin = draw(st.integers(0, len(steps) - 1))
    for number, choice in enumerate(steps):
        if number >= begin and (not maker.marks or choice % 7 == 0):
            maker.mark(list(Instant)[choice // 7 % len(Instant)])
        if live and choice % 3 == 0:
            maker.give(live.pop(choice // 3 % len(live)))
        else:
            size, component = choice % 5_000, list(Component)[choice // 5 % len(Component)]
            live.append(maker.take(size, component, f"m.{choice % 4}", "op", stream=choice // 11 % 3))
    return maker.made()
