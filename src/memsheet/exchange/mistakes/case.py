"""What a rule of the lint looks at, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.errors import Problem
from memsheet.exchange.shared.file_format import FileReading, Together
from memsheet.exchange.shared.script_places import OF_RELEASE_5
from memsheet.frozen import dataclass, field, replace
from memsheet.patterns import late_pattern
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.workload import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Files that were read, what they say together, and what came of it. ``ask`` accounts the plan with some
    keys changed.
    """

    reads: Mapping[str, FileReading]
    texts: Mapping[str, str]
    together: Together
    answer: Answer | None
    model: ModelSpec | None  # known where a plan is refused, too
    ask: Callable[[Mapping[str, Any]], Answer | None]
    bundled: Callable[[str], str | None] = lambda _: None  # the bundled model that a hub's name is of
    too_few_cards: tuple[int, int] | None = None  # GPUs that are named, and the ranks that take one each
    refused: tuple[Problem, ...] = ()  # what the engine stops at of a plan that has no sheet

    @property
    def request(self) -> Mapping[str, Any]:
        return self.together.request

    @property
    def trained(self) -> Plan | None:
        """The plan that was answered, where it trains."""
        plan = self.answer.plan if self.answer else None
        return plan if plan and isinstance(plan.workload, Training) else None

    def of(self, *formats: str) -> Iterator[tuple[str, FileReading]]:
        return ((name, read) for name, read in self.reads.items() if read.form.name in formats)

    def values(self, *formats: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return ((name, read.values) for name, read in self.of(*formats))


EVALUATES = ("eval_strategy", "evaluation_strategy")
"""When the Trainer evaluates, by its present name and the one before transformers 4.46."""
SCALES = frozenset({"deepspeed", "accelerate"})
"""Files that may give a run a scaler of another kind, or none."""
RAISES = late_pattern(r"\.float\(\)|float32|fp32")
"""What a script may raise those weights with that train."""
TRAINERS = ("transformers", "trl")
"""Formats of transformers' arguments: TRL's are these and its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMistake:
    """One mistake. ``where``: file and key; ``gains_bytes``: what a rank's cache gets by the cure of a
    server's; ``fits``: how the sheet fits with other changes (``fitting``, else those of the cure),
    "without" say; ``by_cards``: it is the GPUs that are named which are too few, of files that others run;
    ``may_stop``: the release that the sheet is of refuses the file, and another may take it; ``unheard``: a
    key that would change the sheet and that the engine ignores.
    """

    where: str
    says: str
    cure: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    saves_bytes: int | None = None
    gains_bytes: int | None = None
    stops: bool = False
    fits: str = ""
    fitting: Mapping[str, Any] = field(default_factory=dict)
    by_cards: bool = False
    may_stop: bool = False
    unheard: bool = False

    @property
    def other(self) -> Mapping[str, Any]:
        """The changes with which the sheet fits."""
        return self.fitting or self.changes

    def claimed(self, *, sure: bool) -> FoundMistake:
        """With what is known of another plan's fit in words: of the job, or of what the sheet holds alone."""
        said = (
            f"the job fits {self.fits}"
            if sure
            else f"what the sheet holds fits {self.fits}, which is not all of the job"
        )
        return replace(self, says=f"{self.says}, and {said}") if self.fits else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``looks`` yields what it finds; ``only_if_saves``: said only where the cure frees a part worth telling;
    ``only_if_whole``: where nothing is left to a script or to a file that is not there, as the finding says
    that another plan fits; ``any_reader``: its stops are sure whichever program reads the file; ``beyond``:
    the bytes that its cure frees are not in the sheet, so that they may keep a job from fitting that the
    sheet says fits.
    """

    id: str
    source: str
    looks: Callable[[Case], Iterator[FoundMistake]]
    only_if_saves: bool = False
    only_if_whole: bool = False
    any_reader: bool = False
    beyond: bool = False


ENGINE_REFUSES = "engine-refuses"
"""The rule of what keeps a plan from having a sheet."""
SERVERS = {"vllm": "vLLM ", "sglang": "SGLang "}
"""How sources of a server's code begin."""


def source_for(rule: Rule, engine: str) -> str:
    """A rule's source, without those of other servers than the one whose file it is about."""
    others = tuple(begins for name, begins in SERVERS.items() if engine in SERVERS and name != engine)
    return "; ".join(part for part in rule.source.split("; ") if not part.startswith(others or ("\0",)))


def device_bytes(answer: Answer) -> int:
    return max(int(sheet.device.value) for sheet in answer.sheets)


def answer_fits(answer: Answer | None) -> bool:
    return answer is not None and answer.verdict is not None and answer.verdict.result is Result.FITS


def scaled_halves(where: str, read: FileReading) -> FoundMistake:
    """That a scaler of gradients is given weights in fp16. Sure of a dtype that the file says: where it says
    none, transformers 4 loads fp32.
    """
    said = not any(told.endswith(OF_RELEASE_5) for told in read.assumed)
    return FoundMistake(
        where=where,
        says=(
            f"the weights that train are loaded in fp16{'' if said else ' by transformers 5'}, and the "
            "scaler of gradients takes none in fp16: the first step ends with "
            '"Attempting to unscale FP16 gradients"'
        ),
        cure="load them in float32 beside fp16, or take bf16 where the card computes in it",
        stops=said,
        may_stop=not said,
    )
