"""The order of a training step as a script of allocations, whatever ranks divide: what passes through the
stage's parts, and what the optimizer makes. How parameters and gradients are kept is a subclass's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from memsheet.arith import Count
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.replay.optimizer_step import (
    BY_TENSOR,
    STATES_FROM_START,
    state_sizes,
    step_by_tensor,
)
from memsheet.formulas.replay.script import Played, Recorded, Script, Stop, play_backward, play_forward
from memsheet.formulas.replay.tape_logs import Lifetimes, Sized
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.states.optimizers import (
    Work,
    adamw_work,
    fp32_copy_bytes,
    optimizer_work,
)
from memsheet.formulas.tapes.evaluate import Part
from memsheet.frozen import NamedTuple, dataclass, field
from memsheet.plan.dtypes import INT64
from memsheet.plan.plan import Plan, depends_on_routing

T = TypeVar("T")
MOST_MICROBATCHES = 2
"""Of a step: from the second on all are alike, but for a last one that alone reduces gradients."""
THREADS = 2
"""That multiply matrices: the one that runs forward, and autograd's."""


class Buffers(NamedTuple):
    """Bytes of a rank's states that lie in buffers, or are cut from what does."""

    parameters: int
    gradients: int
    master_weights: int
    moments: int


def stays_on_device(plan: Plan, *, states_leave: bool = False, parameters_leave: bool = False) -> bool:
    """Whether all that a step makes is on the device and at its place in the order of layers.
    ``states_leave``: but for what the optimizer has; ``parameters_leave``: and for a rank's part of the
    parameters.
    """
    offload = plan.offload
    moved = (offload.parameters and not (parameters_leave and offload.parameters == 1)) or (
        offload.optimizer and not (states_leave and offload.optimizer == 1)
    )
    known = isinstance(plan.mesh.gpus, int) and not depends_on_routing(plan)
    return known and not moved


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step has beside its parts. ``beside``: bytes that are there all the time; ``named``: that the
    training loop still names from the loss to the end of the step; ``workspace``: that cuBLAS takes for
    either thread that multiplies matrices, at its first product; ``keeps_gradients``: they are there in
    forward, and those of every micro-batch are added to them; ``stepping``: bytes that the optimizer makes
    for itself, where it is not known tensor by tensor; ``stage``: of the pipeline; ``buffers``: what states
    lie in where they are not tensors of their own; ``matrices``: elements of those of each layer, where they
    are joined; ``kept``: bytes that a module's first backward leaves for good, by its name; ``share``: which
    part of the buffers the rank's optimizer has; ``chunks``: layers of each chunk of a stage that has
    several; ``joined_on_host``: what lies in one buffer was joined there; ``host_ahead``: of
    the device, as far as it may be; ``masks``: bytes of what the model's forward makes for all layers and
    names to its end, or, where ``keeps_masks``, until they have run backward; ``tables``: bytes of
    cosines and sines, which forward makes and layers save, if ``keeps_tables``; ``reduces_last``: of a step's
    micro-batches the last one alone reduces gradients; ``idle``: parameters that no part of it has;
    ``rooted``: of these, what is gathered with the whole model where layers are gathered one by one;
    ``beside_units``: layers beside the walk's that stay gathered until their backward, an encoder's;
    ``head_elements``: of the block that Adam-mini takes for a head; ``copies``: bytes of tables that each
    layer has to itself; ``returned``: that the model's forward returned from another card.
    """

    beside: int = 0
    named: int = 0
    workspace: int = 0
    keeps_gradients: bool = False
    stepping: int = 0
    stage: int = 0
    buffers: Buffers | None = None
    matrices: tuple[tuple[int, ...], ...] = ()
    kept: Mapping[str, int] = field(default_factory=dict)
    share: int = 0
    chunks: tuple[int, ...] = ()
    joined_on_host: bool = False
    host_ahead: bool = False
    masks: tuple[int, ...] = ()
    keeps_masks: bool = False
    tables: tuple[int, ...] = ()
    keeps_tables: bool = True
    reduces_last: bool = False
    idle: tuple[HeldTensor, ...] = ()
    rooted: tuple[HeldTensor, ...] = ()
    beside_units: tuple[tuple[HeldTensor, ...], ...] = ()
    head_elements: int = 0
    copies: tuple[int, ...] = ()
    returned: int = 0
    may_expand: bool = False


def of_each(parameters: Sequence[tuple[HeldTensor, int]], number: Callable[[HeldTensor, int], T]) -> list[T]:
    """What is said of each parameter and its elements. Layers that are alike share theirs: asked once."""
    keys = [(id(h), elements) for h, elements in parameters]
    once = {key: number(*one) for key, one in dict(zip(keys, parameters, strict=True)).items()}
    return [once[key] for key in keys]


class Run:
    """Steps of one stage as they are written into a script: here of a model that the rank has to itself.
    ``hosts``: whether a rank's part of parameters and states may be on the host; ``stages``: whether it is
    one of several stages; ``steps_early``: whether a parameter may be stepped as soon as its gradient is
    there; ``stretches_layers``: whether several layers may be recomputed together.
    """

    hosts = stages = steps_early = stretches_layers = False

    def __init__(self, walk: StageLayers, plan: Plan, lifetimes: Lifetimes, told: StepContext) -> None:
        self.walk, self.plan, self.lifetimes, self.script, self.told = walk, plan, lifetimes, Script(), told
        self.layers = [group for run in walk.layers for _ in range(run.count) for group in run.pattern]
        self.chunk_ends = [0, *accumulate(told.chunks or (len(self.layers),))]
        self.recorded: dict[int, Recorded] = {}
        self.gradients: list[int] = []
        self.states: list[int] = []
        self.named: list[int] = []
        self.multiplied = 0  # threads that have multiplied matrices
        self.later = False  # whether a micro-batch before this one has left gradients
        self.last = True  # whether it is a step's last
        self.backward_events = (0, 0)  # of the last micro-batch
        recompute = plan.recompute
        stretched = self.stretches_layers and recompute.stretched
        self.stretches = frozenset(recompute.starts(len(self.layers)) if stretched else ())
        self.prepare()

    @classmethod
    def plays(cls, plan: Plan) -> bool:
        """Whether a step passes through one stage or several, with nothing on the host, under an optimizer
        whose states and copies are written down.
        """
        optimizer = plan.optimizer
        return (
            optimizer is not None
            and plan.staged is cls.stages
            and (cls.steps_early or not plan.optimizer_in_backward)
            and (cls.stretches_layers or not plan.recompute.stretched)
            and plan.precision.master_weights is None
            and stays_on_device(plan, states_leave=cls.hosts, parameters_leave=cls.hosts)
        )

    @classmethod
    def others(cls, plan: Plan, told: StepContext) -> list[StepContext]:
        """What else may be told of the same step, each of which widens what is reserved."""
        del plan, told
        return []

    def other_script(self, told: StepContext, start: int) -> tuple[Script, int] | None:
        """The script of a run that is told otherwise, made of this one's, and where its second step begins
        (``start`` in this one); None where it has to be written.
        """
        del told, start
        return None

    # ---- how parameters and gradients are kept -----------------------------------------------------------

    def prepare(self) -> None:
        """What is known before the first step."""

    def kept_elements(self, held: HeldTensor) -> Count:
        """Elements of a parameter that the rank keeps between steps."""
        return held.elements

    def load_beside(self) -> None:
        """What is made before the first step beside parameters."""

    def enter(self, group: Group, number: int) -> None:
        """Before a part's forward. ``number``: of its layer; -1 of the embeddings, -2 of the head."""

    def head_stops(self, head: Recorded) -> Iterable[Stop]:
        """What is done while the head's forward runs."""
        del head
        return ()

    def leave(self, number: int) -> None:
        """After a part's forward."""

    @property
    def loss_outside(self) -> bool:
        """Whether the loss is taken of what the model's forward has returned."""
        return True

    def leave_forward(self) -> None:
        """When the model's forward is over."""

    def enter_loss(self) -> None:
        """Before the loss's backward."""

    def enter_backward(self, number: int) -> None:
        """Before a part's backward."""

    def prefetch(self, number: int) -> None:
        """What is asked for while a part's backward runs."""

    def take_gradients(self, number: int, made: Sequence[int]) -> None:
        """After a part's backward, which made these gradients of parameters."""
        del number
        self.gradients += made

    def end_backward(self) -> None:
        """When the first part's backward is over."""

    @property
    def adds(self) -> bool:
        """Whether a gradient goes as soon as it is made, because it is added to one that is there."""
        return self.later

    # ---- a step --------------------------------------------------------------------------------------------

    def part(self, part: Part, lifetimes: Lifetimes | None = None) -> Recorded:
        """A part's tapes with their sizes. Only layers are compiled."""
        if id(part) not in self.recorded:
            assert part.played is not None
            tape, light, axes = part.played
            first = Sized.of(light, axes, lifetimes) if light else None
            self.recorded[id(part)] = Recorded(Sized.of(tape, axes, None if light else lifetimes), first)
        return self.recorded[id(part)]

    def load(self) -> None:
        """The rank's part of all parameters, and what is there beside."""
        self.script.take(self.told.beside)
        each = of_each(
            [(h, 0) for h in self.all_parameters()],
            lambda h, _: int(h.dtype.nbytes(self.kept_elements(h))) if h.elements else None,
        )
        self.script.take_all([size for size in each if size is not None])
        self.take_apart()
        if self.plan.optimizer is not None and self.plan.optimizer.name in STATES_FROM_START:
            self.take_states(self.stepped())
        self.load_beside()

    def take_apart(self) -> None:
        """What of parameters no rank divides."""
        apart = of_each(
            [(h, 0) for h in self.all_parameters()], lambda h, _: int(h.apart) if h.packed else None
        )
        self.script.take_all([size for size in apart if size is not None])

    def all_parameters(self) -> list[HeldTensor]:
        """Every parameter, in order, each as often as it is there."""
        groups = [self.walk.embeddings, *self.layers, self.walk.head]
        used = [h for group in groups if group for h in group.parameters for _ in range(h.times)]
        return [*(h for h in self.told.idle for _ in range(h.times)), *used]

    def step(self) -> None:
        if not self.later:
            self.script.give(self.gradients)
            self.gradients = []
        count = min(self.plan.accumulation, MOST_MICROBATCHES + self.told.reduces_last)
        for number in range(count):
            self.later, self.last = self.later or number > 0, number == count - 1
            self._micro_batch()
        self._optimize()
        self.script.give(self.named)
        self.named = []
        # none of theirs goes where they are set to zero
        self.later = self.told.keeps_gradients and self.plan.accumulation == 1

    def _micro_batch(self) -> None:
        tokens = int(INT64.nbytes(self.plan.training.microbatch * self.plan.training.seq_len))
        inputs = self.script.take_all([tokens] * (2 * self.has_inputs))
        played, loss = self.forward()
        start = len(self.script.events)
        self.backward(played, loss)
        self.backward_events = (start, len(self.script.events))
        self.script.give(inputs)

    @property
    def has_inputs(self) -> bool:
        """Whether token ids and labels are on the device."""
        return True

    def receive_input(self) -> int | None:
        """What the first layer is handed where embeddings are elsewhere, unless it lies there already."""
        return None

    def receive_gradient(self) -> int | None:
        """What comes back to the last layer where the loss is elsewhere, likewise."""
        return None

    def send_output(self, output: int) -> None:
        """What goes to the stage behind is let go of (Megatron's deallocate_pipeline_outputs)."""
        self.script.give((output,))

    def layers_of_chunk(self, chunk: int) -> range:
        """Numbers of the layers of one of the rank's chunks."""
        return range(self.chunk_ends[chunk], self.chunk_ends[chunk + 1])

    def forward(self, chunk: int = 0) -> tuple[list[Played], Played | None]:
        script, walk, played = self.script, self.walk, list[Played]()
        x = self.receive_input() if chunk == 0 and not walk.embeddings else None
        if walk.embeddings and chunk == 0:
            self.enter(walk.embeddings, FIRST)
            done, x = play_forward(script, self.part(walk.embeddings.part), None, lingers=True)
            played.append(done)
            self.leave(FIRST)
        tables, masks = script.take_all(self.told.tables), script.take_all(self.told.masks)
        entered = len(played)
        for number in self.layers_of_chunk(chunk):
            group = self.layers[number]
            self.enter(group, number)
            workspace = 0 if self.multiplied else self.told.workspace
            part = self.part(group.part, self.lifetimes)
            keeps = not self.stretches or number in self.stretches
            names = (number == 0 and entered > 0 and not walk.entry) or bool(part.own.tape.collected)
            done, x = play_forward(
                script, part, x, lingers=True, workspace=workspace, keeps_input=keeps, names_input=names
            )
            self.multiplied = max(self.multiplied, 1)
            played.append(done)
            self.leave(number)
        if self.told.keeps_tables and len(played) > entered:
            played[entered].masks, tables = tables, []
        script.give(tables)
        if self.told.keeps_masks and played:
            played[0].masks, masks = [*played[0].masks, *masks], []
        script.give(masks)
        script.give([number for done in played for number in done.named])
        loss = None
        if walk.head and walk.loss and chunk + 1 == (len(self.told.chunks) or 1):
            self.enter(walk.head, LAST)
            head = self.part(walk.head.part)
            done, x = play_forward(script, head, x, lingers=True, stops=self.head_stops(head))
            played.append(done)
            if self.loss_outside:
                self.leave_forward()
            script.give(self.named)
            self.named = [script.take(self.told.named)] if self.told.named else []
            loss, _ = play_forward(script, self.part(walk.loss), x, lingers=True)
        elif x is not None:
            self.send_output(x)
        self.leave_forward()
        for done in (*played, *([loss] if loss else [])):
            script.give(done.lingering)
        return played, loss

    def backward(self, played: list[Played], loss: Played | None, chunk: int = 0) -> None:
        script, g = self.script, self.receive_gradient() if loss is None else None
        if loss is not None:
            self.enter_loss()
            made, g = self.part_backward(loss, None)
            self.prefetch(LAST)
            workspace = self.told.workspace if self.multiplied < THREADS else 0
            own, g = self.part_backward(played.pop(), g, workspace)
            self.multiplied = THREADS
            self.take_gradients(LAST, [*made, *own])
        for number in reversed(self.layers_of_chunk(chunk)):
            self.enter_backward(number)
            self.prefetch(number)
            if self.stretches:
                self._run_stretch_again(played, number)
            workspace = self.told.workspace if loss is None and self.multiplied < THREADS else 0
            made, g = self.part_backward(played.pop(), g, workspace)
            self.multiplied = max(self.multiplied, THREADS if workspace else 0)
            self.take_gradients(number, made)
        if played:
            self.enter_backward(FIRST)
            made, g = self.part_backward(played.pop(), g)
            self.take_gradients(FIRST, made)
        if g is not None:
            script.give((g,))
        self.end_backward()

    def _run_stretch_again(self, played: list[Played], number: int) -> None:
        """Where a layer is the last that are recomputed together, those before it run forward again as they
        would without recompute, and it from what they hand it.
        """
        start = max(one for one in self.stretches if one <= number)
        last = number + 1 == len(self.layers) or number + 1 in self.stretches
        if not last or start == number:
            return
        count = number - start + 1
        first, own = played[-count], played[-1]
        handed = next(iter(first.part.own.tape.handed), None)
        x = first.given if first.given is not None else first.held.get(handed if handed is not None else -1)
        del played[-count:]
        for layer in range(start, number):
            done, x = play_forward(self.script, self.part(self.layers[layer].plain, self.lifetimes), x)
            played.append(done)
        own.given = x
        played.append(own)

    def part_backward(
        self, played: Played, gradient: int | None, workspace: int = 0
    ) -> tuple[list[int], int | None]:
        """A part's backward."""
        return play_backward(self.script, played, gradient, adds=self.adds, workspace=workspace)

    def _optimize(self) -> None:
        plan, script = self.plan, self.script
        if plan.optimizer is None or plan.optimizer_in_backward:
            return
        stepped = self.stepped()
        if not self.states:
            self.take_states(stepped)
        work = optimizer_work(plan)
        if plan.optimizer.name in BY_TENSOR:
            stepped, work = step_by_tensor(script, stepped, plan), adamw_work(plan)
        if not work.together and not work.alone:
            return
        sizes = of_each(stepped, lambda h, n: int(work.dtype(h, plan).nbytes(n)))
        if work.together:
            script.give(script.take_all([size for size in sizes for _ in range(work.together)]))
        else:
            raised = of_each(stepped, lambda h, n: int(fp32_copy_bytes(h, n, plan)) if work.wide else 0)
            self._step_one_by_one(sizes, raised, work)

    def take_states(self, stepped: Sequence[tuple[HeldTensor, int]]) -> None:
        """What the optimizer keeps of each parameter from now on."""
        each = of_each(stepped, lambda h, n: state_sizes(h, n, self.plan, self.told.head_elements))
        self.states = self.script.take_all([size for sizes in each for size in sizes if size])

    def stepped(self) -> list[tuple[HeldTensor, int]]:
        """Parameters that train, and how many elements of each the rank's optimizer has."""
        trained = [h for h in self.all_parameters() if h.trains]
        elements = of_each([(h, 0) for h in trained], lambda h, _: int(self.kept_elements(h)))
        return [*zip(trained, elements, strict=True)]

    def _step_one_by_one(self, sizes: Sequence[int], raised: Sequence[int], work: Work) -> None:
        """Copies of one tensor at a time, beside what a variable still names of the one before."""
        before: list[int] = []
        for size, wider in zip(sizes, raised, strict=True):
            lifted = [self.script.take(wider)] if wider else []
            held = [self.script.take(size) for _ in range(work.alone)]
            self.script.give(before)
            before = held[len(held) - work.left :]
            self.script.give([*held[: len(held) - work.left], *lifted])
        self.script.give(before)


FIRST, LAST = -1, -2
"""Numbers of the embeddings and of the head among the layers."""
