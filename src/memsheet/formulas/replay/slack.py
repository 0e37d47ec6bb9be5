"""The allocator's slack of a step whose own allocations can be replayed, in place of a share of what is
allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memsheet.arith import Count
from memsheet.formulas.activations import run_config_of
from memsheet.formulas.device_map import TABLES, has_tables, returned_logits
from memsheet.formulas.groups import StageLayers, walk_stage_layers
from memsheet.formulas.model_code import model_code
from memsheet.formulas.pipeline import layers_of_stage, stage_model
from memsheet.formulas.replay import steps as alike
from memsheet.formulas.replay.order import THREADS, Buffers, StepContext
from memsheet.formulas.replay.steps import Reserved
from memsheet.formulas.sharding.per_parameter_sizes import root_tower_weights, units_beside_layers
from memsheet.formulas.sharding.resident_state import DUMMY_WGRAD
from memsheet.formulas.states.gradients import accumulates_gradients, reduces_surely_last
from memsheet.formulas.states.held import HeldTensor, held_tensors
from memsheet.formulas.states.optimizers import head_elements
from memsheet.formulas.states.params import fold_path_indices
from memsheet.formulas.tapes.kernel_scratch import BACKWARD_SCRATCH
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, Schedule
from memsheet.sheet import Bytes, Component, Evidence, Instant, Item, sum_byte_ranges

with late_functions(__name__):
    from memsheet.formulas.sharding.distributed_optimizer import layer_matrix_shapes

FLUSHES = (
    (
        "the allocator gives cached blocks back to the device to stay inside it; where it has to in every "
        "step, the job is slow"
    ),
)


FILLS = (
    (
        "at the most the allocator gives cached blocks back to the device to stay inside it: the range ends "
        "there"
    ),
)


LAUNCHES = (
    (
        "the tool's own launch script sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the range of "
        "reserved bytes holds that too, and --expandable-segments asks for it alone"
    ),
)


def items_with_replayed_slack(
    items: list[Item],
    model: ModelSpec,
    plan: Plan,
    engine: Engine,
    cluster: Cluster,
    allocated: Mapping[Instant, Count],
    stage: int = 0,
) -> tuple[list[Item], tuple[str, ...]]:
    """``items`` with the slack of the step's own allocations, where they are those of one pass and could fit
    at all, and what there is to say of it.
    """
    found: Reserved | None = None
    if _exceeds_device(items, cluster):
        pass
    elif plan.training.varied:
        varied = _varied_lengths_reserved(items, model, plan, engine, cluster, allocated)
        found = Reserved(varied, False) if varied else None
    elif not engine.varies:  # lengths that are all alike are an exception there
        found = _equal_steps_reserved(items, model, plan, engine, cluster, stage)
    if found is None:
        return items, ()
    if found.scratch:
        made = Bytes.exact(found.scratch)
        at = {Instant.BACKWARD: made}
        items = [*items, Item(Component.TEMPORARIES, KERNELS, at, BACKWARD_SCRATCH)]
        allocated = {**allocated, Instant.BACKWARD: allocated[Instant.BACKWARD] + found.scratch}
    evidence = _slack_evidence(plan, engine)
    # no more than the range has room for: what is reserved holds them already
    rests = min(found.rests, int(found.bytes.high) - int(found.bytes.value))
    row = replayed_slack_item(found.bytes, allocated, evidence, rests, _open_below(items))
    return [
        *(item for item in items if item.component is not Component.ALLOCATOR_SLACK),
        *([_block_rests(rests, allocated)] if rests > 0 else []),
        row,
    ], (
        *(FLUSHES if found.flushes else FILLS if found.fills else ()),
        *(LAUNCHES if _may_expand(plan, engine) else ()),
    )


def _may_expand(plan: Plan, engine: Engine) -> bool:
    """Whether the tool's own launch script would set what the plan does not."""
    return not plan.expandable_segments and engine.launched_expandable(plan.engine_version)


def _slack_evidence(plan: Plan, engine: Engine) -> Evidence:
    if plan.training.varied:
        from memsheet.formulas.replay import varied

        return varied.REPLAYED
    return alike.REPLAYED if engine.sharding.leaves_tensors else alike.REPLAYED_SHARES


NOTHING_BELOW: Mapping[Instant, int] = {}
KERNELS = "kernels"
"""The path of what kernels allocate for themselves where backward has most."""
BLOCK_RESTS = "blocks"
"""The path of what blocks hold beyond the tensors in them."""


def _block_rests(rests: int, allocated: Mapping[Instant, Count]) -> Item:
    """What torch counts as allocated beyond tensors while a step runs: a rest below 1 MiB of a large block is
    not split off. The range holds it; tensors are what is expected.
    """
    size = Bytes(0, 0, rests)
    at: dict[Instant, Bytes] = {when: size for when in allocated if when is not Instant.LOAD}
    return Item(Component.TEMPORARIES, BLOCK_RESTS, at, alike.REPLAYED)


def _open_below(items: Iterable[Item]) -> dict[Instant, int]:
    """By how much tensors may be fewer at an instant than is expected, and was played."""
    own = [item for item in items if item.component not in OUTSIDE]
    sizes = {when: sum_byte_ranges(item.at[when] for item in own if when in item.at) for when in Instant}
    return {when: max(0, int(size.value) - int(size.low)) for when, size in sizes.items()}


def replayed_slack_item(
    found: Bytes,
    allocated: Mapping[Instant, Count],
    evidence: Evidence,
    rests: int = 0,
    below: Mapping[Instant, int] = NOTHING_BELOW,
) -> Item:
    """The row of the allocator's slack: what is reserved of earlier instants and steps stays. ``rests``: what
    of it may be counted with tensors; ``below``: by how much tensors of an instant may be fewer, and with
    them what stays of it at the others.
    """
    at: dict[Instant, Bytes] = {}
    most = max(below.values(), default=0)
    for instant, size in allocated.items():
        counted = 0 if instant is Instant.LOAD else rests
        low = found.low - (most - below.get(instant, 0))
        ends = (low, found.value, found.high - counted)
        at[instant] = Bytes(*sorted(max(0, int(end) - int(size)) for end in ends))
    return Item(Component.ALLOCATOR_SLACK, "allocator", at, evidence)


def _exceeds_device(items: Sequence[Item], cluster: Cluster) -> bool:
    """Whether tensors and context alone are more than the device has at any reading of it: the allocator
    decides nothing.
    """
    outside = (Component.ALLOCATOR_SLACK,)
    least = [
        sum(item.at[when].low for item in items if when in item.at and item.component not in outside)
        for when in Instant
    ]
    return any(size > cluster.device.framework_high_bytes for size in least)


def _equal_steps_reserved(
    items: list[Item], whole: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster, stage: int
) -> Reserved | None:
    """What is reserved by steps that are all alike."""
    if not alike.is_equal_step_replayable(plan, engine.sharding):
        return None
    code = model_code(engine.layers)
    model, plan = stage_model(whole, plan, stage), code.of_rank(plan)
    how, shape = run_config_of(plan, engine), plan.training.shape
    workspaces = _workspaces(items)
    loaded, stepped = _tensor_bytes(items, Instant.LOAD), _tensor_bytes(items, Instant.OPTIMIZER_STEP)
    buffers = Buffers(*(_component_bytes(items, component) for component in STATES))
    buffered = not engine.sharding.leaves_tensors
    apart = plan.schedule is Schedule.NAIVE and not has_tables(plan, stage)
    shared = {
        key: int(size)
        for key, size in code.shared(model, plan, shape, how).held.items()
        if key[0] is not Component.BUFFERS
    }
    copies = [shared.pop(TABLES)] if apart and TABLES in shared else []
    tables = [*shared.values()]
    one_by_one = engine.sharding.leaves_tensors and not plan.staged
    keeps_masks = code.keeps_masks(model, plan)
    beside = loaded - sum(buffers) if buffered else _component_bytes(items, Component.BUFFERS)
    told = StepContext(
        workspace=int(workspaces.value) // THREADS,
        beside=beside + (0 if one_by_one else sum(tables)),
        tables=_cosines_and_sines(tables) if one_by_one else (),
        copies=_cosines_and_sines(copies),
        returned=int(returned_logits(whole, plan, stage).total),
        keeps_tables=keeps_masks or not plan.offload.activations,
        buffers=buffers if buffered else None,
        named=int(code.named(model, plan, shape, how).total),
        keeps_gradients=accumulates_gradients(plan, engine),
        stepping=max(0, stepped - loaded) if buffered else 0,
        stage=stage,
        matrices=_joined_matrices(model, plan) if buffered else (),
        kept=_kept_by_modules(items) if buffered else {},
        masks=tuple(int(size) for size in code.masks(model, plan, shape, how).held.values()),
        keeps_masks=keeps_masks,
        reduces_last=reduces_surely_last(plan, engine),
        may_expand=_may_expand(plan, engine),
        chunks=_layers_of_chunks(whole, plan, stage) if plan.mesh.vpp > 1 else (),
    )
    walk = walk_stage_layers(model, plan, engine, release=False)
    if engine.roots_frozen_ends and plan.adapter is not None:
        walk = replace(walk, tied=True)  # embeddings and head are the root's
    idle, rooted = _parameters_beside(model, plan, walk)
    told = replace(told, idle=idle, rooted=rooted, head_elements=int(head_elements(model)))
    if not plan.reshard_after_forward:  # which the runs that gather units read
        told = replace(told, beside_units=units_beside_layers(model, plan))
    tensors = _most_tensor_bytes(items)
    room = _bytes_left_for_step(items, cluster) + workspaces
    backward = _tensor_bytes(items, Instant.BACKWARD)
    found = alike.steady_reserved_bytes(walk, plan, room, told, engine.sharding, tensors, backward)
    if found is None:
        return None
    ends = (found.bytes.low, found.bytes.value, found.bytes.high)
    return replace(found, bytes=Bytes(*(int(end) - int(workspaces.value) for end in ends)))


def _cosines_and_sines(tables: Iterable[int]) -> tuple[int, ...]:
    return tuple(part for size in tables for part in (size // 2, size - size // 2))


def _parameters_beside(
    model: ModelSpec, plan: Plan, walk: StageLayers
) -> tuple[tuple[HeldTensor, ...], tuple[HeldTensor, ...]]:
    """Parameters that no part of a step has, as those of a tower that no picture passes through; and of these
    the ones that lie in no unit of their own where layers are gathered one by one.
    """
    if not model.extras and not model.towers and plan.schedule is not Schedule.NAIVE:
        return (), ()
    groups = [*(group for run in walk.layers for group in run.pattern), walk.embeddings, walk.head]
    known = {fold_path_indices(h.path) for group in groups if group for h in group.parameters}
    known |= {h.path for h in walk.outer_norms}
    idle = tuple(h for h in held_tensors(model, plan) if fold_path_indices(h.path) not in known)
    rooted = {h.path for h in walk.rest} | {path for path, _, _ in root_tower_weights(model)}
    return idle, tuple(h for h in idle if h.path in rooted)


def _layers_of_chunks(model: ModelSpec, plan: Plan, stage: int) -> tuple[int, ...]:
    ends = (layers_of_stage(model.layers, plan, stage, chunk) for chunk in range(plan.mesh.vpp))
    return tuple(last - first for first, last in ends)


def _joined_matrices(model: ModelSpec, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Elements of each layer's matrices, in the order in which they are made: an attention's projection
    before what it projects (Megatron-LM 23e00ed core/transformer/attention.py, Attention.__init__).
    """
    found = dict[int, tuple[int, ...]]()
    blocks = [block for run in model.stacks[-1].runs for _ in range(run.count) for block in run.pattern]
    for block in blocks:
        if id(block) not in found:
            shapes = sorted(layer_matrix_shapes(block, plan), key=lambda one: one[0] != "linear_proj")
            found[id(block)] = tuple(
                int(rows * columns) for name, rows, columns in shapes if not name.startswith("experts.")
            )
    return tuple(found[id(block)] for block in blocks) if len(model.stacks) == 1 else ()


def _kept_by_modules(items: Iterable[Item]) -> dict[str, int]:
    """What modules make in their first backward and keep."""
    rows = ((item.path.partition(f"{DUMMY_WGRAD}/"), item) for item in items)
    return {name: int(item.largest.value) for (before, at, name), item in rows if at and not before}


STATES = (
    Component.PARAMETERS,
    Component.GRADIENTS,
    Component.MASTER_WEIGHTS,
    Component.OPTIMIZER_STATES,
)


def _component_bytes(items: Iterable[Item], component: Component) -> int:
    return sum(
        int(item.at[Instant.LOAD].value)
        for item in items
        if item.component is component and Instant.LOAD in item.at
    )


def _tensor_bytes(items: Iterable[Item], when: Instant) -> int:
    return sum(
        int(item.at[when].value) for item in items if when in item.at and item.component not in OUTSIDE
    )


def _most_tensor_bytes(items: Iterable[Item]) -> Bytes:
    """The range of what is there at each end's own most."""
    own = [item for item in items if item.component not in OUTSIDE]
    sizes = [sum_byte_ranges(item.at[when] for item in own if when in item.at) for when in Instant]
    return Bytes(*(max(end) for end in zip(*((s.low, s.value, s.high) for s in sizes), strict=True)))


def _workspaces(items: Iterable[Item]) -> Bytes:
    """What cuBLAS takes of torch's allocator, at the size that is expected: the row beside has its range."""
    sizes = [item.largest.value for item in items if (item.component, item.path) == BLAS]
    return Bytes.exact(sum(sizes))


BLAS = (Component.WORKSPACES, "cublas")


OUTSIDE = (Component.ALLOCATOR_SLACK, Component.CONTEXT, Component.WORKSPACES)


def _varied_lengths_reserved(
    items: list[Item],
    model: ModelSpec,
    plan: Plan,
    engine: Engine,
    cluster: Cluster,
    allocated: Mapping[Instant, Count],
) -> Bytes | None:
    """Reserved bytes of steps whose lengths differ."""
    from memsheet.formulas.replay import varied as lengths

    stage = walk_stage_layers(model, plan, engine, release=True)
    if not lengths.is_varied_step_replayable(stage, plan):
        return None
    gradients = [
        item for item in items if item.component is Component.GRADIENTS and Instant.FORWARD in item.at
    ]
    before = sum(int(item.at[Instant.FORWARD].value) for item in gradients)
    return lengths.varied_reserved_bytes(
        stage, plan, int(allocated[Instant.LOAD]) + before, cluster.device.framework_bytes
    )


def _bytes_left_for_step(items: Iterable[Item], cluster: Cluster) -> Bytes:
    """What the driver and libraries leave the step's own tensors."""
    taken = sum_byte_ranges(
        item.largest for item in items if item.component in (Component.CONTEXT, Component.WORKSPACES)
    )
    whole = cluster.device.framework_bytes
    return Bytes(whole - taken.high, whole - taken.value, whole - taken.low)
