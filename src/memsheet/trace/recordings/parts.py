"""A step cut into its parts: embeddings, layers, head. Each storage belongs to the part that makes it, and to
the next where that one keeps it.

Windows are numbered in order of time: before the layers, each layer forward, behind them; then the
loss's backward, the head's, each layer's, and what is before them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from memsheet.frozen import dataclass, field
from memsheet.recording import ALLOCATED, MADE_GRADIENT, RELEASED
from memsheet.sheet import Component
from memsheet.trace.modules import fold_layer_indices
from memsheet.trace.recorder import Row
from memsheet.trace.recordings.observe import NotRecordableError, Step

STANDS = frozenset({Component.BUFFERS, Component.INPUTS, Component.WORKSPACES})
"""What is there after a step, whenever it was made."""


WORDS = frozenset({"input_ids", "labels"})
"""Inputs that every step has, which are no part of a record."""


@dataclass(frozen=True, slots=True)
class PartStorage:
    """A storage of a part: its bytes at the size that was run."""

    path: str
    bytes: int
    width: int = 0
    hidden: bool = False  # by a kernel, inside an operation


@dataclass(slots=True, kw_only=True)
class FoundPass:
    """As ``recording.RecordedPass``, with bytes in place of functions."""

    storages: list[PartStorage] = field(default_factory=list)
    forward: list[tuple[str, int]] = field(default_factory=list)
    backward: list[tuple[str, int]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    handed: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    collected: list[int] = field(default_factory=list)
    lingering: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A step's parts, its layers one by one. ``light``: their forward where they are run again."""

    embeddings: FoundPass
    head: FoundPass
    loss: FoundPass
    layers: tuple[FoundPass, ...]
    light: tuple[FoundPass | None, ...]
    shared: tuple[PartStorage, ...]
    masks: tuple[PartStorage, ...]
    until_loss: tuple[PartStorage, ...]
    named: tuple[PartStorage, ...]


def cut_step(step: Step, untrained: int = 0) -> FoundRun:
    """The parts of a step, of whose layers the first ``untrained`` get no gradient. Raises
    NotRecordableError where its layers do not run one after another.
    """
    return _Cutter(step, untrained).cut()


class _Cutter:
    def __init__(self, step: Step, untrained: int) -> None:
        self.step, self.rows, self.events = step, step.rows, step.events
        n = self.layers = step.layers
        if not n or set(step.entered) != set(range(n)):
            raise NotRecordableError("its layers do not each run once")
        if set(step.returned) != set(range(untrained, n)):
            raise NotRecordableError("not every layer hands on one tensor that backward comes back through")
        self.cuts = self._cuts()
        self.after = len(self.cuts)
        self.made, self.gone = [-1] * len(self.rows), [self.after] * len(self.rows)
        for at, event in enumerate(self.events):
            if event >= 0:
                self.made[event] = self._window(at)
            else:
                self.gone[~event] = self._window(at)
        self.windows = defaultdict[int, list[int]](list)  # what each made
        for row, window in enumerate(self.made):
            self.windows[window].append(row)
        self.claimed = {row: (at, name, width) for at, row, name, width in step.gradients}
        self.named_after = dict[int, frozenset[int]]()  # by the window of a layer's forward
        for layer in range(n):
            self.named_after[self._forward_of(layer)] = self._named_after(layer)

    # ---- windows -------------------------------------------------------------------------------------------

    def _cuts(self) -> list[int]:
        """The event with which each window begins."""
        step, n = self.step, self.layers
        forward = [step.begins, step.entered[0]]
        forward += [self._handed_on(step.left[i], step.entered[i + 1]) for i in range(n - 1)]
        forward.append(self._handed_on(step.left[n - 1], step.backward))
        forward.append(
            step.backward if step.projected is None else self._handed_on(step.projected, step.backward)
        )
        back = step.backward if step.unprojected is None else step.unprojected
        backward = [step.backward, back, *(step.returned.get(i, step.ends) for i in reversed(range(n)))]
        backward.append(self._first_layer_done(step.returned.get(0, step.ends)))
        cuts = [*forward, *backward, step.ends]
        if cuts != sorted(cuts):
            raise NotRecordableError("its layers do not run one after another")
        return cuts

    def _first_layer_done(self, begins: int) -> int:
        """Where the first layer's backward ends: its input's gradient is there. What every layer is handed
        beside it goes back before that, behind the layer's own parameters: its nodes were made first, and
        autograd takes the newest of those that are ready.
        """
        step = self.step
        reached = step.reached.get(0, step.ends)
        there = [(at, name in step.around) for at, _, name, _ in step.gradients if begins <= at < reached]
        first = next((at for at, around in there if around), None)
        if first is None:
            return reached
        return max((at for at, around in there if not around and at <= first), default=begins)

    def _handed_on(self, left: int, entered: int) -> int:
        """Between two layers, what is let go still belongs to the first, what is made to the second."""
        return next((at for at in range(left, entered) if self.events[at] >= 0), entered)

    def _window(self, at: int) -> int:
        """The number of the window of an event; -1 before the step."""
        return bisect_right(self.cuts, at) - 1

    def _forward_of(self, layer: int) -> int:
        return 1 + layer

    def _backward_of(self, layer: int) -> int:
        return 2 * self.layers + 4 - layer

    @property
    def _behind(self) -> int:
        return self.layers + 1

    @property
    def _loss(self) -> int:
        return self.layers + 2

    @property
    def _loss_back(self) -> int:
        return self.layers + 3

    @property
    def _head_back(self) -> int:
        return self.layers + 4

    @property
    def _end_back(self) -> int:
        return 2 * self.layers + 5

    def _span(self, window: int) -> range:
        return range(self.cuts[window], self.cuts[window + 1])

    @property
    def _collects(self) -> bool:
        """Whether what layers are handed goes by a name until the last one has run: the states of all layers,
        which a loop collects.
        """
        early = (self.step.inputs.get(layer) for layer in range(self.layers - 2))
        return any(row is not None and self.layers <= self.gone[row] <= self._loss for row in early)

    # ---- parts ---------------------------------------------------------------------------------------------

    def cut(self) -> FoundRun:
        n, logits = self.layers, self.step.logits
        layers = [self._layer(layer) for layer in range(n)]
        return FoundRun(
            embeddings=self._part(0, self._end_back, None, self.step.inputs.get(0)),
            head=self._part(self._behind, self._head_back, self.step.outputs.get(n - 1), logits),
            loss=self._part(self._loss, self._loss_back, logits, None),
            layers=tuple(plain for plain, _ in layers),
            light=tuple(light for _, light in layers),
            shared=(*self._of_all(lambda gone: self._loss_back <= gone < self._end_back), *self._inputs()),
            masks=tuple(self._of_all(lambda gone: 1 < gone < self._loss)),
            until_loss=tuple(self._of_all(lambda gone: gone == self._loss)),
            named=tuple(
                self._storage_of_row(row)
                for row, window in enumerate(self.made)
                if self._named_by_loop(row, window)
            ),
        )

    def _inputs(self) -> Iterable[PartStorage]:
        """What this step is given beside words and labels."""
        for row, gone in zip(self.rows, self.gone, strict=True):
            if row.component is Component.INPUTS and row.path not in WORDS and gone >= 0:
                yield PartStorage(row.path, row.bytes)

    def _of_all(self, belongs: object) -> Iterable[PartStorage]:
        """What was made before the layers and is no layer's."""
        for row, window in enumerate(self.made):
            if window == 0 and row != self.step.inputs.get(0) and belongs(self.gone[row]):  # type: ignore[operator]
                yield self._storage_of_row(row)

    def _layer(self, layer: int) -> tuple[FoundPass, FoundPass | None]:
        forward, backward = self._forward_of(layer), self._backward_of(layer)
        into, out = self.step.inputs.get(layer), self._output_of(layer)
        if layer not in self.step.again:
            return self._part(forward, backward, into, out), None
        return self._run_again(layer, into), self._part(forward, -1, into, out, light=True)

    def _output_of(self, layer: int) -> int | None:
        return self.step.inputs.get(layer + 1) if layer + 1 < self.layers else self.step.outputs.get(layer)

    def _part(
        self, forward: int, backward: int, into: int | None, out: int | None, *, light: bool = False
    ) -> FoundPass:
        """What is made in the windows ``forward`` and ``backward``."""
        made = FoundPass()
        number: dict[int, int] = {}
        if into is not None:
            self._add(made, number, into)
            made.handed.append(0)
            made.forward.append((ALLOCATED, 0))
        for row in sorted(self.named_after.get(forward - 1, ())):
            self._add(made, number, row)
            made.forward.append((ALLOCATED, number[row]))
        self._log(made.forward, made, number, self._span(forward))
        for row, place in list(number.items()):
            self._keep(made, row, place, forward, backward, into, out, light=light)
        if not light:
            self._backward(made, number, backward, [self._span(backward)])
        return made

    def _keep(
        self, made: FoundPass, row: int, place: int, forward: int, backward: int, into: int | None,
        out: int | None, *, light: bool,
    ) -> None:  # fmt: skip
        """Where a storage of a forward is once that has passed."""
        gone = self.gone[row]
        if gone <= forward:
            return
        if row == into and not light and self._collects and self.layers <= gone <= self._loss:
            made.collected.append(place)
            made.forward.append((RELEASED, place))
        elif row == into and (light or gone != backward):
            made.forward.append((RELEASED, place))
        elif row == out and gone != backward:
            made.outputs.append(place)
            made.forward.append((RELEASED, place))
        elif (forward == 0 and gone < self._end_back) or row in self.named_after.get(forward, ()):
            made.forward.append((RELEASED, place))  # of all layers (shared, masks), or the next part's
        elif gone <= self._loss:
            made.cached.append(place)
        elif self._named_by_loop(row, forward):
            made.forward.append((RELEASED, place))
        else:
            made.saved.append(place)
            read = self._backward_of(forward - self._forward_of(0)) if light else backward
            if gone > read and row not in self.claimed:
                made.lingering.append(place)

    def _named_after(self, layer: int) -> frozenset[int]:
        """What a layer's forward makes beside its output and the loop over layers names until the next one is
        through, or the model is: the weights of eager attention.
        """
        window, out = self._forward_of(layer), self._output_of(layer)
        made = (row for row in self.windows[window] if row != out)
        if layer + 1 < self.layers:
            return frozenset(row for row in made if self.gone[row] == window + 1)
        before = {_path_of(self.rows[row]) for row in self.named_after.get(window - 1, ())}
        ends = (self._behind, self._loss)
        return frozenset(row for row in made if self.gone[row] in ends and _path_of(self.rows[row]) in before)

    def _named_by_loop(self, row: int, made: int) -> bool:
        """Whether a storage that was made in window ``made`` outlives the backward of what made it, as the
        loss does, and is no gradient that was made in forward, as fused losses make their weight's.
        """
        return (
            made in (self._behind, self._loss)
            and self.gone[row] > self._head_back
            and row not in self.claimed
        )

    def _backward(self, made: FoundPass, number: dict[int, int], window: int, spans: Sequence[range]) -> None:
        """The log of a backward: what arrives, what is made, what is left. A gradient that layers add to in
        place comes from further away than the part before.
        """
        arriving = self._arriving(window) if window > self._loss_back else []
        for row in arriving:
            self._add(made, number, row, "/gradient")
            made.backward.append((ALLOCATED, number[row]))
        rows = {place: row for row, place in number.items()}
        early = [place for place in made.saved if self.gone[rows[place]] < window]
        made.backward += [(RELEASED, place) for place in early]
        for span in spans:
            self._log(made.backward, made, number, span, backward=True)
        for row, place in number.items():
            if place in made.lingering:
                continue
            if row in self.claimed:
                arrives = (MADE_GRADIENT, place)
                if arrives not in made.backward and (ALLOCATED, place) in made.backward:
                    made.backward.append(arrives)  # when another is added to it: a tied table's
                continue
            if self.gone[row] > window and self.made[row] >= self._loss_back:
                if self.gone[row] > window + 1 and self.rows[row].bytes == self.step.tied_bytes:
                    made.backward.append((MADE_GRADIENT, place))  # it waits for another: a tied table's
                else:
                    made.backward.append((RELEASED, place))

    def _arriving(self, window: int) -> list[int]:
        """What a window of backward begins with: what those before it made and left, as gradients of what all
        layers add to are, and the gradient that it is handed.
        """
        handed = self._handed_back(window)
        found = {
            row
            for before in range(self._loss_back, window)
            for row in self.windows[before]
            if before == window - 1 or self.rows[row].bytes != self.step.tied_bytes  # it waits by itself
        }
        if handed is not None and self.made[handed] < window:
            found.add(handed)
        return sorted(
            row
            for row in found
            if self.gone[row] >= window and row not in self.claimed and self.rows[row].component not in STANDS
        )

    def _handed_back(self, window: int) -> int | None:
        """The storage of the gradient that a window of backward begins with."""
        number = self.layers if window == self._end_back else self._backward_of(window)
        return self.step.handed_back.get(number) if number >= 0 else None

    def _run_again(self, layer: int, into: int | None) -> FoundPass:
        """A layer whose forward runs again in backward: that forward, and what comes of it."""
        window = self._backward_of(layer)
        start, stop = self.step.again[layer]
        span = self._span(window)
        made, number = FoundPass(), dict[int, int]()
        if into is not None:
            self._add(made, number, into)
            made.handed.append(0)
            made.forward.append((ALLOCATED, 0))
        self._log(made.forward, made, number, range(start, stop))
        there = {row for at in range(start, stop) if (row := self.events[at]) >= 0}
        there -= {~event for at in range(start, stop) if (event := self.events[at]) < 0}
        if any(self._stays_on_model(row) for row in there):
            raise NotRecordableError("what its layers make when they run again stays on the model")
        made.saved = [
            number[row] for row in number if row in there or (row == into and self.gone[row] == window)
        ]
        if into is not None and self.gone[into] != window:
            made.forward.append((RELEASED, 0))
        before = len(made.storages)
        self._backward(made, number, window, [range(span.start, start), range(stop, span.stop)])
        live = {row for row in number if number[row] >= before and self.made[row] < window}
        for at in range(span.start, start):
            event = self.events[at]
            if event >= 0:
                live.add(event)
            else:
                live.discard(~event)
        made.waiting = sorted(number[row] for row in live if row in number)
        return made

    def _stays_on_model(self, row: int) -> bool:
        """Whether a storage is there when the step is over and is neither a gradient nor always there: a
        module that names its last state keeps all that the state was made of (transformers 5.23
        modeling_recurrent_gemma.py, RecurrentGemmaRglru.forward).
        """
        return (
            self.gone[row] == self.after
            and row not in self.claimed
            and self.rows[row].component not in STANDS
        )

    # ---- storages ------------------------------------------------------------------------------------------

    def _log(
        self,
        log: list[tuple[str, int]],
        made: FoundPass,
        number: dict[int, int],
        span: range,
        *,
        backward: bool = False,
    ) -> None:
        arrived = {at: row for at, row, _, _ in self.step.gradients} if backward else {}
        for at in range(span.start, span.stop + backward):
            if at in arrived and arrived[at] in number and (MADE_GRADIENT, number[arrived[at]]) not in log:
                log.append((MADE_GRADIENT, number[arrived[at]]))
            if at == span.stop:
                break
            event = self.events[at]
            if event >= 0:
                if self.rows[event].component in STANDS:
                    continue
                self._add(made, number, event)
                log.append((ALLOCATED, number[event]))
            elif ~event in number:
                log.append((RELEASED, number[~event]))

    def _add(self, made: FoundPass, number: dict[int, int], row: int, path: str = "") -> None:
        number[row] = len(made.storages)
        made.storages.append(self._storage_of_row(row, path))

    def _storage_of_row(self, row: int, path: str = "") -> PartStorage:
        found = self.rows[row]
        claimed = self.claimed.get(row)
        if claimed is not None:
            return PartStorage(fold_layer_indices(claimed[1].rpartition(".")[0]), found.bytes, claimed[2])
        return PartStorage(path or _path_of(found), found.bytes, 0, "/" in found.op)


def _path_of(row: Row) -> str:
    module = fold_layer_indices(row.path) or "loss"
    return f"{module}/{row.part or row.op.removeprefix('aten.')}"
