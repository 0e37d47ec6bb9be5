"""What lets a server start that its pool keeps from starting: changes of one kind, each accounted again, and
what they come to together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.account import account_rank
from memsheet.budget import Result, judge_plan, verdict_on_held_sequences, verdict_on_start
from memsheet.errors import InputError, raise_if_problems
from memsheet.formulas.serving.servers import server_facts
from memsheet.frozen import dataclass
from memsheet.plan.device import MAX_DEVICES, Cluster, cluster_of, parse_gpus
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.hardware import FP8_UNITS, is_older_device, unsupported_choices
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.sequence_length import derived_max_length
from memsheet.resolve import resolve_request
from memsheet.search.serve.asked_sequences import requested_sequences
from memsheet.search.train.space import divisors
from memsheet.sheet import Bytes

Changes = Mapping[str, Any]
STEP = 64
"""Lengths are looked at in multiples of it, as a search for the longest does."""
FRACTIONS = (0.95, 0.98)
SEQUENCES = (256, 64, 16)
"""Sequences that may start: the sampler of a first batch is sized for all of them."""
FOUR_BITS = ("awq-int4", "gptq-int4")
FEWER_BITS = {16: (("fp8",), FOUR_BITS), 32: (("fp8",), FOUR_BITS), 8: (FOUR_BITS,)}
"""Formats of weights by the bits that they are stored in now, the first that a card reads of each kind; of
four bits there is none that takes less.
"""
LENGTHS = ("seq_len", "serving.max_model_len", "serving.prompt_tokens", "serving.output_tokens")
WANTED = "@wanted"
"""Where a request says how many sequences were asked for, beside its options."""
TIMES = (2, 4, 8, 16)
"""Of the GPUs there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTrial:
    """What a server with some changes comes to. ``lacks``: bytes of a rank for one sequence, negative where
    they are left.
    """

    changes: Changes
    plan: Plan
    lacks: Bytes
    result: Result


def makes_room(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, lacks: Bytes
) -> Mapping[str, Any]:
    """Facts about a server that may not start. ``makes_room``: changes that bring it nearer, those that
    suffice first, each as {changes, result, frees_bytes, lacks_bytes}; ``makes_room_together``: several that
    suffice where none does alone on these GPUs; ``longest_that_fits``: tokens of the longest sequence,
    shorter than is asked, with which it is sure to start, ``longest_expected``: with which it is expected to,
    more than is asked too (None where no length is).
    """
    before = _startup_trial(model, request, cluster, {})
    if before is None:
        return {}
    kinds = [
        _best_startup_change(model, request, cluster, kind)
        for kind in _startup_changes_by_kind(before.plan, cluster, request)
    ]
    saving = [found for found in kinds if found is not None and _brings_nearer(found, before)]
    order = sorted(
        saving, key=lambda found: (ORDER[found.result], "gpus" in found.changes, found.lacks.value)
    )
    enough = [found for found in order if found.result is Result.FITS]
    more = [] if enough else list(_more_gpus(before.plan, cluster, request))
    together = (
        None
        if any("gpus" not in found.changes for found in enough)
        else _combined_startup_changes(model, request, cluster, order, more)
    )
    told = {
        "makes_room": [_startup_change_facts(found, lacks) for found in order],
        **_longest_starting_lengths(model, request, cluster, before.plan),
    }
    return {**told, "makes_room_together": _startup_change_facts(together, lacks)} if together else told


def _brings_nearer(found: StartupTrial, before: StartupTrial) -> bool:
    """Whether a change saves anything and its own question has a better answer: of a server that is expected
    to start, one that is sure to; of one that is not, one that may, or lacks less.
    """
    if found.lacks.value >= before.lacks.value:
        return False
    if found.result is Result.FITS or before.lacks.value <= 0:
        return found.result is Result.FITS
    return found.lacks.value > 0 or found.result is Result.UNCERTAIN


ORDER = {Result.FITS: 0, Result.UNCERTAIN: 1, Result.DOES_NOT_FIT: 2}


def _startup_change_facts(found: StartupTrial, lacks: Bytes) -> Mapping[str, Any]:
    return {
        "changes": dict(found.changes), "result": found.result.value, "frees_bytes": int(lacks.value - found.lacks.value),
        "lacks_bytes": int(found.lacks.value),
    }  # fmt: skip


def _startup_changes_by_kind(
    plan: Plan, cluster: Cluster, request: Mapping[str, Any]
) -> Iterator[list[Changes]]:
    """Changes of one kind, the mildest first."""
    yield list(_replicas_as_ranks(plan))
    if (
        plan.cache.kv_dtype is not None
        and plan.cache.kv_dtype.bits >= 16
        and not is_older_device(cluster.device, FP8_UNITS)
    ):
        yield [{"serving.kv_dtype": "fp8"}]
    if request.get("quantization.weights") is not None:
        yield [
            dict.fromkeys(
                (
                    "quantization.weights",
                    "quantization.group_size",
                    "quantization.skip",
                    "quantization.experts",
                )
            )
        ]  # as released, which may take less
    bits = plan.quantization.weights.bits if plan.quantization is not None else plan.precision.parameters.bits
    for names in FEWER_BITS.get(bits, ()):
        yield [{"quantization.weights": name} for name in names]
    yield [
        {"serving.memory_fraction": share} for share in FRACTIONS if share > (plan.cache.memory_fraction or 1)
    ]
    if engine_of(plan).serving.profiles_batch:
        yield [
            {"serving.max_sequences": count}
            for count in SEQUENCES
            if count < (plan.serving.max_sequences or 0)
        ]
        yield [{"cuda_graphs": False}] if plan.options.captures else []
    if plan.served_adapters is not None and plan.served_adapters.slots > 1:
        yield [{"serving.max_loras": 1}]
    if plan.speculative is not None:
        yield [
            {
                "speculative.method": None,
                "speculative.model": None,
                "speculative.tokens": None,
                "speculative.tp": None,
            }
        ]
    yield list(_more_gpus(plan, cluster, request))


def _replicas_as_ranks(plan: Plan) -> Iterator[Changes]:
    """The same GPUs with fewer copies of the model, each cut over more of them."""
    copies, tp = int(plan.mesh.dp_replicate), int(plan.mesh.tp)
    for left in reversed(divisors(copies)):
        if left < copies:
            yield {"mesh.tp": tp * copies // left, "mesh.dp_replicate": left}


def _more_gpus(plan: Plan, cluster: Cluster, request: Mapping[str, Any]) -> Iterator[Changes]:
    """More ranks for each replica; a cluster in a file is all there is."""
    for times in TIMES:
        if cluster.count * times <= MAX_DEVICES and not cluster.file:
            told = {"mesh.tp": int(plan.mesh.tp) * times} if request.get("mesh.tp") is not None else {}
            yield {"gpus": f"{cluster.count * times}x{cluster.device.name}", **told}


def _best_startup_change(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, kind: list[Changes]
) -> StartupTrial | None:
    """The first of a kind with which it is sure to start, else is expected to, else the one that leaves least
    to be found.
    """
    found = [one for changes in kind if (one := _startup_trial(model, request, cluster, changes)) is not None]
    likely = next((one for one in found if one.result is Result.UNCERTAIN and one.lacks.value <= 0), None)
    return next(
        (one for one in found if one.result is Result.FITS),
        likely or min(found, key=lambda one: one.lacks.value, default=None),
    )


def _combined_startup_changes(
    model: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    order: list[StartupTrial],
    gpus: list[Changes],
) -> StartupTrial | None:
    """Changes by what they free, one after another, on the fewest GPUs with which it is sure to start then,
    less those that are not needed; None where it never is.
    """
    kept = list[Changes]()
    for changes in (held.changes for held in sorted(order, key=lambda held: held.lacks.value)):
        if not {"gpus", *(key for other in kept for key in other)} & changes.keys():
            kept.append(changes)
    ways = ((kept[:many], more) for more in ({}, *gpus) for many in range(1, len(kept) + 1))
    tried = ((several, more, _all_of(model, request, cluster, [*several, more])) for several, more in ways)
    kept, more, found = next((one for one in tried if one[2] is not None), ([], {}, None))
    for one in reversed(kept):
        rest = [other for other in kept if other is not one]
        if rest and (fewer := _all_of(model, request, cluster, [*rest, more])) is not None:
            kept, found = rest, fewer
    return found


def _all_of(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, several: list[Changes]
) -> StartupTrial | None:
    """A server that is sure to start with several changes."""
    found = _startup_trial(
        model, request, cluster, {key: value for one in several for key, value in one.items()}
    )
    return found if found is not None and found.result is Result.FITS else None


def _startup_trial(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, changes: Changes
) -> StartupTrial | None:
    """The server with some changes; None where they are not legal."""
    asked = {
        key: value
        for key, value in {**request, **changes}.items()
        if key not in ("gpus", WANTED) and value is not None
    }
    try:
        larger = _cluster_of_gpus(cluster, changes.get("gpus"))
        plan = resolve_request(asked, model, larger).plan
        raise_if_problems(unsupported_choices(plan, larger, model))
        sheets = tuple(account_rank(model, plan, larger, stage) for stage in range(plan.mesh.pp))
        lacks = server_facts(model, plan, larger, sheets)["short_bytes"]
    except InputError:
        return None
    verdict = verdict_on_start(judge_plan(model, plan, larger, sheets), lacks)
    wanted = request.get(WANTED)  # where nobody asks for any at once, a change is of the most that start
    wanted = changes.get("serving.max_sequences", wanted) if wanted else None
    if wanted and (held := requested_sequences(model, plan, larger, wanted)) is not None:
        verdict = verdict_on_held_sequences(verdict, held.wanted, held.held, held.missing_bytes)
    return StartupTrial(changes=changes, plan=plan, lacks=lacks, result=verdict.result)


def _cluster_of_gpus(cluster: Cluster, gpus: Any) -> Cluster:
    """As if so many GPUs were asked for."""
    count = parse_gpus(str(gpus))[0] if gpus else None
    return cluster_of(cluster.device, count, host_bytes=cluster.host_bytes) if count else cluster


def _longest_starting_lengths(
    model: ModelSpec, request: Mapping[str, Any], cluster: Cluster, plan: Plan
) -> Mapping[str, int | None]:
    """The longest sequences. A server that starts with room for a page has no length at fault."""
    if not engine_of(plan).serving.needs_longest:
        return {"longest_that_fits": None, "longest_expected": None}
    asked = {key: value for key, value in request.items() if key not in LENGTHS}
    length = int(plan.serving.max_model_len or STEP)
    most = max(length, derived_max_length(model) or 0) // STEP  # what is asked may be expected to start

    def at(steps: int) -> StartupTrial | None:
        return _startup_trial(model, asked, cluster, {"serving.max_model_len": steps * STEP})

    return {
        "longest_that_fits": _bisect_longest_length(
            (length - 1) // STEP,
            lambda steps: (found := at(steps)) is not None and found.result is Result.FITS,
        ),
        "longest_expected": _bisect_longest_length(
            most,
            lambda steps: (
                (found := at(steps)) is not None
                and found.lacks.value <= 0
                and found.result is not Result.DOES_NOT_FIT
            ),
        ),
    }


def _bisect_longest_length(most: int, holds: Callable[[int], bool]) -> int | None:
    """The last multiple of STEP up to ``most`` of them that holds, where shorter ones do; None where none
    does.

    A bracket is halved: of what serves no step is replayed, slack is a share of what is allocated, and a
    longer sequence needs more.
    """
    if most < 1 or not holds(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low * STEP
