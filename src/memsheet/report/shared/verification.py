"""A plan under three witnesses, as data: what each rung of the ladder was, what every rank held, and which
term is farthest off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.frozen import dataclass, field
from memsheet.plan.plan import Plan
from memsheet.sheet import NOTHING, Bytes, Component, Instant, Sheet, Witness, bytes_by_module

SCHEMA = "memsheet/verification/1"
BAR = 0.01
"""How far a prediction may be from what was measured before it is said to be off: DESIGN's bar for training
peaks.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A component of a module at the peak, as predicted and as it was. ``share``: the difference as a
    fraction of that peak.
    """

    component: Component
    path: str
    predicted_bytes: int
    found_bytes: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWitnesses:
    """One rank as each witness saw it; None for a witness who was not asked or could not say."""

    rank: int
    stage: int
    same_as: tuple[int, ...] = ()
    predicted: Sheet | None = None
    traced: Sheet | None = None
    measured: Sheet | None = None

    @property
    def truth(self) -> Sheet | None:
        """The witness that comes closest to a real job."""
        return self.measured or self.traced

    def peak(self, witness: Witness) -> int | None:
        """Bytes of tensors at a witness's peak."""
        sheet: Sheet | None = getattr(self, witness.value)
        return None if sheet is None else int(sheet.allocated.value)

    @property
    def error(self) -> float | None:
        """(predicted - truth) / truth of the peak."""
        return _relative_peak_error(self.predicted, self.truth)

    @property
    def trace_error(self) -> float | None:
        """(traced - measured) / measured of the peak."""
        return _relative_peak_error(self.traced, self.measured)

    @property
    def worst(self) -> Term | None:
        """The term in which prediction and truth differ most, when the truth is at its peak; None where they
        are equal, or one is missing.
        """
        if self.predicted is None or self.truth is None:
            return None
        return worst_term(self.predicted, self.truth, self.truth.peak_instant)


def _relative_peak_error(guess: Sheet | None, truth: Sheet | None) -> float | None:
    if guess is None or truth is None:
        return None
    size = int(truth.allocated.value)
    return (int(guess.allocated.value) - size) / size if size else 0.0


def worst_term(predicted: Sheet, found: Sheet, instant: Instant) -> Term | None:
    """The component and module that differ most at an instant, the way that the peaks differ; None where all
    are equal.

    What differs the other way is left out: two witnesses may take an instant's high-water mark at moments
    that are equally high and hold different things.
    """
    guessed, real = bytes_by_module(predicted, instant), bytes_by_module(found, instant)
    whole = int(found.at(instant).value) or 1
    way = 1 if predicted.allocated.value >= found.allocated.value else -1
    terms = [
        _error_term(key, guessed.get(key, NOTHING), real.get(key, NOTHING), whole)
        for key in dict.fromkeys((*guessed, *real))
    ]
    top = max(terms, key=lambda term: way * term.share, default=None)
    return top if top is not None and top.share else None


def _error_term(key: tuple[Component, str], guess: Bytes, real: Bytes, whole: int) -> Term:
    sizes = int(guess.value), int(real.value)
    return Term(
        component=key[0],
        path=key[1],
        predicted_bytes=sizes[0],
        found_bytes=sizes[1],
        share=(sizes[0] - sizes[1]) / whole,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRun:
    """One thing that was run. ``what``: how it differs from the plan asked for; ``refused``: why a witness is
    silent, or why nothing was run; ``record``: of the real run (``memsheet/record/1``).
    """

    name: str
    what: str
    device: str
    plan: Plan
    ranks: tuple[RankWitnesses, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    record: Mapping[str, Any] | None = None

    @property
    def measured(self) -> bool:
        """Whether it was really run."""
        return any(seen.measured for seen in self.ranks)

    @property
    def failed(self) -> bool:
        """Whether it was to be run, within what can be afforded, and did not come to an end."""
        return "measured" in self.refused and bool(self.ranks)

    @property
    def worst(self) -> RankWitnesses | None:
        """The rank whose prediction is farthest off; None where nothing was compared."""
        return max(
            (seen for seen in self.ranks if seen.error is not None),
            key=lambda seen: abs(seen.error or 0.0),
            default=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan's way up the ladder."""

    model: str
    plan: Plan
    rungs: tuple[VerificationRun, ...]

    @property
    def worst(self) -> tuple[VerificationRun, RankWitnesses] | None:
        """The rung and rank whose prediction is farthest off."""
        found = [(rung, seen) for rung in self.rungs if (seen := rung.worst) is not None]
        return max(found, key=lambda pair: abs(pair[1].error or 0.0), default=None)

    @property
    def measured(self) -> bool:
        """Whether anything was really run."""
        return any(rung.measured for rung in self.rungs)

    @property
    def failed(self) -> bool:
        """Whether a run did not come to its end: what agrees then has not been seen whole."""
        return any(rung.failed for rung in self.rungs)

    @property
    def holds(self) -> bool:
        """Whether every rung that was compared is within the bar, and there is one."""
        return self.worst is not None and abs(self.worst[1].error or 0.0) <= BAR


def verification_document(found: Verification) -> dict[str, Any]:
    """``memsheet/verification/1``: errors are fractions of the truth's peak."""
    from memsheet.plan.document import plan_document

    return {
        "schema": SCHEMA, "model": found.model, "plan": plan_document(found.plan, model=found.model), "holds": found.holds, "bar": BAR,
        "rungs": [
            {
                "name": rung.name, "what": rung.what, "device": rung.device, "seconds": round(rung.seconds, 1), "plan": plan_document(rung.plan),
                "refused": dict(rung.refused), "ranks": list(map(_verified_rank_document, rung.ranks)),
            }
            for rung in found.rungs
        ],
    }  # fmt: skip


def _verified_rank_document(seen: RankWitnesses) -> dict[str, Any]:
    term = seen.worst
    return {
        "rank": seen.rank, "stage": seen.stage, "same_as": list(seen.same_as),
        **{f"{witness.value}_bytes": seen.peak(witness) for witness in Witness},
        "error": seen.error, "trace_error": seen.trace_error,
        "instants": [{"instant": instant.value, **sizes} for instant, sizes in instant_bytes_by_witness(seen)],
        "worst_term": None if term is None else {
            "component": term.component.value, "path": term.path, "predicted_bytes": term.predicted_bytes, "found_bytes": term.found_bytes,
            "share": term.share,
        },
    }  # fmt: skip


def instant_bytes_by_witness(seen: RankWitnesses) -> Iterator[tuple[Instant, dict[str, int | None]]]:
    """Bytes of tensors at each instant, by each witness."""
    sheets: dict[Witness, Sheet | None] = {witness: getattr(seen, witness.value) for witness in Witness}
    for instant in Instant:
        if any(sheet is not None and instant in sheet.instants for sheet in sheets.values()):
            yield (
                instant,
                {
                    f"{w.value}_bytes": int(s.at(instant).value) if s and instant in s.instants else None
                    for w, s in sheets.items()
                },
            )
