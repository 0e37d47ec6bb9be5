"""The largest (or fewest) of one quantity that fits: sequence length, micro-batch, GPUs, parameters.

Every step of the search is a whole question, resolved, accounted and judged as `memsheet train` does it;
nothing is solved backwards, and what is shown of a value is what an answer to it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from memsheet.budget import Fix, LibraryUse, Result, WayToFit
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import MAX_DEVICES, ONE_NODE, UNSAID, Cluster, Device, Links, resize_cluster
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.library_defaults import implied_library_keys
from memsheet.plan.model import ModelSpec
from memsheet.plan.names import SHORT
from memsheet.resolve import resolve_request
from memsheet.search.fitting_edges import fitting_edges
from memsheet.search.fixes.cheapest import cheapest_fix
from memsheet.search.fixes.on_any_cluster import fewer_ways
from memsheet.search.fixes.ways_to_fit import ways_to_fit
from memsheet.search.pool_room import pools_cache, requested_tokens
from memsheet.search.solve.family import MOST_LAYERS
from memsheet.search.trials import Question, Trials, Tried

TOKENS = 64
"""Sequence lengths are looked at in multiples of it: what tiles of attention kernels come in."""
LONGEST = 2**20
"""Where to stop when a model does not say how many positions it has."""
MOST_SEQUENCES = 2**16
MOST_GPUS = 2**14
MOST_OF_A_SERVER = 2**7
"""GPUs of one that serves; more of them are replicas."""
MODELS_PROBED = 6
"""Of a family, whose members differ much from one to the next, and of which a chart asks for many."""


Say = Callable[[int], None]


def discard_progress(_: int) -> None:
    """Nobody listens."""


class Target(Enum):
    """What is solved for."""

    SEQ_LEN = "seq-len"
    MICROBATCH = "microbatch"
    GPUS = "gpus"
    PARAMETERS = "parameters"
    SEQUENCES = "sequences"
    MAX_MODEL_LEN = "max-model-len"

    @property
    def short(self) -> str:
        """Its flag, as a keyword."""
        return self.value.replace("-", "_")

    @property
    def key(self) -> str:
        """The plan's key that the search sets."""
        return SHORT.get(self.short, self.short)

    @property
    def task(self) -> str:
        return "infer" if self in (Target.SEQUENCES, Target.MAX_MODEL_LEN) else "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A value between the answer and the next step that is not legal."""

    value: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """``found`` fits with its whole range, as every value tried before it does, and ``beyond``, the next
    legal step, does not (None where the values end). ``last_fitting`` is the last value tried that fits:
    another than ``found`` where the verdict alternates. ``expected`` is the last one tried whose expected
    bytes fit, and ``least`` the least demanding value where none fits. ``tried``: what an answer to each
    value says.
    """

    target: Target
    found: Tried | None
    beyond: Tried | None
    expected: Tried | None
    least: Tried | None
    last_fitting: Tried | None = None
    values: str  # which were looked at, in words
    skipped: tuple[Skipped, ...] = ()
    tried: tuple[Tried, ...] = ()
    assumed: tuple[str, ...] = ()  # beside what each plan took for granted
    notes: tuple[str, ...] = ()
    fix: Fix | None = None  # what makes the least demanding value fit
    recomputed: Solution | None = None  # with every layer recomputed, where nobody said what is
    ways_to_fit: tuple[WayToFit, ...] = ()  # and where nothing on these cards does, what else would

    def __repr__(self) -> str:
        shown = self.shown
        result = shown.verdict.result.name.replace("_", " ")
        return f"<memsheet solve {self.target.value} {shown.model.name}: {shown.value:,}, {result}>"

    @property
    def shown(self) -> Tried:
        """What stands for the solution: the value that fits, else the one whose expected bytes do, else one
        that may, else the least demanding.
        """
        for tried in (self.found, self.expected, self.possible, self.least):
            if tried is not None:
                return tried
        raise ValueError("a solution has tried something")

    @property
    def task(self) -> str:
        """Of what was asked: the fewest GPUs train or serve."""
        return self.shown.plan.task

    @property
    def possible(self) -> Tried | None:
        """The last value tried that may fit, where none is sure to."""
        every = (self.least, *self.tried, self.expected) if self.found is None else ()
        return next(
            (tried for tried in every[::-1] if tried and tried.verdict.result is not Result.DOES_NOT_FIT),
            None,
        )

    @property
    def result(self) -> Result:
        """Whether a value is sure to fit, one may, or none can."""
        if self.found is not None:
            return Result.FITS
        return Result.DOES_NOT_FIT if self.possible is None else Result.UNCERTAIN


def solve_sequence_length(
    model: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    *,
    most: int | None = None,
    say: Say = discard_progress,
    library: LibraryUse | None = None,
    at_once: int = 1,
) -> Solution:
    """The longest sequence, of a step or of what is served. ``most``: how far to look, the model's positions
    if it is None; ``at_once``: sequences of it that a server's pool is to hold.
    """
    target = Target.MAX_MODEL_LEN if request.get("task") == "infer" else Target.SEQ_LEN
    top = most or model.max_positions or LONGEST
    steps = range(TOKENS, top + 1, TOKENS)
    values = (*steps, top) if top % TOKENS else tuple(steps)
    trials = Trials(
        values=values,
        asks=_question_by_value(model, request, cluster, target.key, library, at_once),
        say=say,
    )
    solution = _solution_of_trials(target, trials, f"multiples of {TOKENS} up to {top:,} tokens")
    return replace(
        solution,
        notes=(
            *_position_limit_notes(model, top, solution, asked=most is not None),
            *_prompt_range_notes(target, request, solution),
        ),
    )


def _prompt_range_notes(target: Target, request: Mapping[str, Any], solution: Solution) -> tuple[str, ...]:
    """Why the range of what is served is wide."""
    plan = solution.shown.plan
    if target.task != "train" and pools_cache(plan):
        tokens = requested_tokens(plan)
        length = (
            "max_model_len"
            if tokens == plan.serving.max_model_len
            else f"{tokens:,} tokens, prompt and answer"
        )
        return (
            (
                f"sequences are counted at {length} each: a server starts more of them, and computes some "
                "again when its pool is full"
            ),
        )
    if target.task == "train" or request.get("serving.prompt_tokens") is not None:
        return ()
    return (
        (
            "prefill is a range from one-token prompts to the whole batch at full length; --prompt-tokens "
            "says how long prompts are"
        ),
    )


def _position_limit_notes(model: ModelSpec, top: int, solution: Solution, *, asked: bool) -> tuple[str, ...]:
    """Where the answer stands to the positions the model was made for."""
    own, found = model.max_positions, solution.found
    if own is None:
        return (f"{model.name} does not say how many positions it has",)
    if asked and found is not None and found.value > own:
        return (f"that goes beyond the {own:,} positions {model.name} was made for",)
    if found is not None and found.value == top == own:
        return (f"{own:,} is all the positions {model.name} has; --most looks further",)
    return ()


def most_sequences(
    model: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    *,
    most: int | None = None,
    say: Say = discard_progress,
    library: LibraryUse | None = None,
) -> Solution:
    """The largest micro-batch; with a global batch, of those that make it up. Of what is served: the most
    sequences at once.
    """
    target = Target.SEQUENCES if request.get("task") == "infer" else Target.MICROBATCH
    values, words = _microbatch_candidates(model, {**request, target.key: 1}, cluster, most or MOST_SEQUENCES)
    solution = _solution_of_trials(
        target,
        Trials(values=values, asks=_question_by_value(model, request, cluster, target.key, library), say=say),
        words,
    )
    return replace(solution, notes=_prompt_range_notes(target, request, solution))


def _microbatch_candidates(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, top: int
) -> tuple[Sequence[int], str]:
    plan = resolve_request(request, model, cluster).plan
    batch = request.get("global_batch")
    if not batch:
        return range(1, top + 1), f"1 to {top:,} sequences"
    engine, each = find_engine(plan.engine), batch // int(plan.mesh.data_parallel)
    if engine is not None and engine.takes_remainder and plan.mesh.pp == 1:
        return range(
            1, min(each, top) + 1
        ), f"1 to {min(each, top):,} sequences, a rank's share of a global batch of {batch}"
    divisors = tuple(size for size in range(1, min(each, top) + 1) if each % size == 0)
    return divisors, f"the divisors of {each}, a rank's share of a global batch of {batch}"


def solve_gpu_count(
    model: ModelSpec,
    request: Mapping[str, Any],
    device: Device,
    *,
    per_node: int | None = None,
    host_bytes: int | None = None,
    links: Links = UNSAID,
    most: int | None = None,
    say: Say = discard_progress,
    library: LibraryUse | None = None,
    at_once: int = 1,
) -> Solution:
    """The smallest cluster: powers of two within a node, then whole nodes. Of what is served, all of them
    hold one replica unless the request says otherwise, and its pool ``at_once`` sequences.
    """
    serves = request.get("task") == "infer"
    size = per_node or device.per_node or ONE_NODE
    top = min(most or (MOST_OF_A_SERVER if serves else MOST_GPUS), MAX_DEVICES)
    cut = any(key.startswith("mesh.") and value is not None for key, value in request.items())
    sizes_of = replica_sizes if serves and not cut else cluster_sizes
    node = Cluster(device=device, per_node=size, links=links.over(device.links), host_bytes=host_bytes)

    def trials(most: int, edits: Mapping[str, Any]) -> Trials:
        changed, sizes = {**request, **edits}, sizes_of(size, most)
        return Trials(
            values=sizes[::-1],
            asks=lambda n: Question(
                model=model,
                request=changed,
                cluster=resize_cluster(node, n),
                library=library,
                at_once=at_once,
            ),
            say=say,
        )

    nodes = "doublings of nodes" if sizes_of is replica_sizes else "whole nodes"
    found = _solution_of_trials(
        Target.GPUS,
        trials(top, {}),
        f"powers of two within a node of {size}, then {nodes}, up to {top:,} GPUs",
    )
    if serves or found.expected is not None or found.found is not None or found.least is None:
        return found
    ways = fewer_ways(request, found.least.plan, trials, (top, max(top, MOST_GPUS)), per_node=per_node)
    return replace(found, ways_to_fit=tuple(ways) or found.ways_to_fit)


def cluster_sizes(per_node: int, top: int) -> tuple[int, ...]:
    """1, 2, 4 … GPUs within a node, then one node, two nodes and so on."""
    within = [1 << power for power in range(per_node.bit_length()) if 1 << power < per_node]
    return tuple(count for count in (*within, *range(per_node, top + 1, per_node)) if count <= top)


def replica_sizes(per_node: int, top: int) -> tuple[int, ...]:
    """1, 2, 4 … GPUs within a node, then one node, two, four and so on: what lies between is replicas of
    fewer, of which a larger cluster may hold less.
    """
    return tuple(
        count
        for count in cluster_sizes(per_node, top)
        if count <= per_node or (count // per_node).bit_count() == 1
    )


def solve_model_size(
    build: Callable[[int], ModelSpec],
    request: Mapping[str, Any],
    cluster: Cluster,
    *,
    say: Say = discard_progress,
    assumed: tuple[str, ...] = (),
    library: LibraryUse | None = None,
) -> Solution:
    """The largest model of a family; ``build`` makes the one of so many layers. ``assumed``: what the caller
    took for granted.
    """
    trials = replace(model_size_trials(build, request, cluster, library), say=say)
    solution = _solution_of_trials(
        Target.PARAMETERS, trials, f"1 to {MOST_LAYERS} layers, everything else in proportion"
    )
    return replace(solution, assumed=assumed)


def model_size_trials(
    build: Callable[[int], ModelSpec],
    request: Mapping[str, Any],
    cluster: Cluster,
    library: LibraryUse | None = None,
) -> Trials:
    """A family's models on a cluster, the smallest first."""
    asks = lambda layers: Question(model=build(layers), request=request, cluster=cluster, library=library)  # noqa: E731
    return Trials(values=range(1, MOST_LAYERS + 1), asks=asks, probes=MODELS_PROBED)


def _question_by_value(
    model: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    key: str,
    library: LibraryUse | None,
    at_once: int = 1,
) -> Callable[[int], Question]:
    """The question with a key set; sequences are searched for all at once."""

    def asked(value: int) -> Question:
        changed = {**request, key: value}
        implied = implied_library_keys(library.name, changed) if library else {}
        return Question(
            model=model,
            request={**changed, **implied},
            cluster=cluster,
            library=library,
            at_once=value if key == Target.SEQUENCES.key else at_once,
        )

    return asked


def _solution_of_trials(target: Target, trials: Trials, values: str) -> Solution:
    """What fits, each value accounted as an answer to it is."""
    edges = fitting_edges(trials)
    found, beyond, last, expected = (
        _replayed_trial(trials, index)
        for index in (edges.found, edges.beyond, edges.last_fitting, edges.expected)
    )
    least = None
    if found is None:
        least = trials.at(trials.legal(range(len(trials.values))) or 0, replays=True)
    hopeless = least if expected is None else None
    fix = _fix_for_least_value(target, trials, hopeless)
    between = (
        range((edges.found or 0) + 1, len(trials.values) if edges.beyond is None else edges.beyond)
        if found
        else ()
    )
    return Solution(
        target=target,
        found=found,
        beyond=beyond,
        last_fitting=last,
        expected=expected,
        least=least,
        values=values,
        fix=fix,
        ways_to_fit=_ways_for_least_value(trials, hopeless) if fix is None else (),
        skipped=tuple(
            Skipped(value=trials.values[index], reason=_illegal_value_reason(trials, index))
            for index in between
        ),
        tried=trials.tried,
    )


FIXED = (Target.SEQ_LEN, Target.MICROBATCH)
"""Where another plan on the same GPUs is a help."""


def _fix_for_least_value(target: Target, trials: Trials, least: Tried | None) -> Fix | None:
    """The cheapest change that makes the least demanding value fit."""
    if least is None or target not in FIXED:
        return None
    asked = trials.asks(least.value)
    return cheapest_fix(
        asked.model, asked.request, asked.cluster, least.sheets, least.verdict, library=asked.library
    )


def _ways_for_least_value(trials: Trials, least: Tried | None) -> tuple[WayToFit, ...]:
    """What else would make the least demanding value fit."""
    if least is None:
        return ()
    asked = trials.asks(least.value)
    return ways_to_fit(asked.model, asked.request, asked.cluster, library=asked.library)


def _replayed_trial(trials: Trials, index: int | None) -> Tried | None:
    return None if index is None else trials.at(index, replays=True)


def _illegal_value_reason(trials: Trials, index: int) -> str:
    return "; ".join(
        f"{problem.field} = {problem.value}: {problem.reason}" for problem in trials.problems(index)
    )


__all__ = [
    "Solution",
    "Target",
    "most_sequences",
    "solve_gpu_count",
    "solve_model_size",
    "solve_sequence_length",
]
