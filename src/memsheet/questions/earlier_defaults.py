"""What transformers and TRL took where nobody says, before the releases whose defaults are read: a job that
fits by those may not fit by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.exchange.file_releases import in_earlier_dtype
from memsheet.exchange.mistakes import Case
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.exchange.shared.older_keys import class_of_method, left_to_release, older_keys
from memsheet.exchange.shared.script_places import RELEASE_DEFAULTS, SCRIPT
from memsheet.exchange.shared.trainer_names import METHODS
from memsheet.exchange.verdict_doubts import Doubt, both_doubts
from memsheet.frozen import NamedTuple
from memsheet.plan.job import Work


class EarlierWord(NamedTuple):
    """A key of TRL's, the release since when it has its default, and the plan's key with its values since
    then and before.
    """

    key: str
    since: tuple[int, int]
    at: str
    newer: str
    value: str
    words: str

    @property
    def note(self) -> str:
        return f"before {'.'.join(map(str, self.since))} {self.words} unless {self.key} says otherwise"


EARLIER = (
    EarlierWord("loss_type", (1, 7), "loss", "chunked", "plain", "makes the logits of all tokens at once"),
    EarlierWord(
        "gradient_checkpointing", (0, 22), "recompute.mode", "full", "none", "computes no layer again"
    ),
)
"""huggingface/trl trl/trainer/sft_config.py at v1.6.0 and v1.7.0 (loss_type), at v0.21.0 and v0.22.0
(gradient_checkpointing, which is every method's).
"""
TRL, GENERATION = "trl", "gen"
IN_FP32 = "transformers before 5 loads weights in fp32 unless dtype says otherwise"
"""huggingface/transformers v4.57 and v5.0 modeling_utils.py, from_pretrained (dtype)."""


def earlier_defaults_doubt(
    reads: Mapping[str, FileReading],
    answer: Answer | None,
    case: Case,
    flags: Mapping[str, Any],
    *,
    alone: Answer | None = None,
) -> Doubt:
    """Why a job that may fit by its libraries' newest defaults may not: nothing says their releases, and
    earlier ones need more than a GPU has. ``alone``: of what trains, where the answer is of several models,
    whose need grows by as much as its does.
    """
    if answer is None or answer.verdict is None or answer.verdict.result is Result.DOES_NOT_FIT:
        return Doubt("")
    said = next((read.release for read in reads.values() if read.form.name == TRL and read.release), "")
    release = _release_numbers(str(flags.get("engine_version") or said))
    taken = {key for read in reads.values() for key in _keys_left_to_release(read)}
    older = [
        one
        for one in EARLIER
        if one.key in taken
        and one.newer == _plan_word(answer, one)
        and not (release and release >= one.since)
    ]
    widths: dict[str, Any] = {}
    for read in reads.values() if answer.plan.quantization is None else ():
        widths |= {at: held for at, held in in_earlier_dtype(read).items() if at in case.request}
    changes = {**widths, **{one.at: one.value for one in older}}
    earlier = case.ask(changes) if changes else None
    if earlier is None or earlier.verdict is None:
        return Doubt("")
    most = int(earlier.verdict.device.high)
    if alone is not None and alone.verdict is not None:
        more = max(0, most - int(alone.verdict.device.high))
        most = max(int(answer.verdict.device.high), _most_of_updates(answer) + more)
    fits = earlier.verdict.result is Result.FITS
    if alone is not None and answer.cluster is not None:
        fits = most <= answer.cluster.device.framework_low_bytes
    if fits:
        return Doubt("")
    told = [f"TRL {one.note}" for one in older] + [IN_FP32] * bool(widths)
    words = "nothing says which releases run (--engine-version does), and the sheet is of the newest: "
    words += ", and ".join(told)
    least = int(answer.verdict.device.low)
    return Doubt(words, least, most)


def earlier_reading_doubt(
    reads: Mapping[str, FileReading], answer: Answer | None, case: Case, flags: Mapping[str, Any]
) -> Doubt:
    """Why a verdict may be another by what an earlier release of the program takes where its files say
    nothing, and nothing says which runs.
    """
    found = Doubt("")
    for read in reads.values() if answer and answer.verdict else ():
        release = _release_numbers(str(flags.get("engine_version") or read.release))
        for one in read.form.earlier(read.values):
            if answer is None or answer.verdict is None or (release and release >= one.since):
                continue
            other = case.ask(one.changes)
            if other is None or other.verdict is None or other.verdict.result is answer.verdict.result:
                continue
            low = min(int(answer.verdict.device.low), int(other.verdict.device.low))
            high = max(int(answer.verdict.device.high), int(other.verdict.device.high))
            words = "nothing says which release runs, and the sheet is of the newest: "
            found = both_doubts(found, Doubt(words + one.why, low, high))
    return found


def _most_of_updates(answer: Answer) -> int:
    """What a card has at the most while a model of a job trains."""
    phases = (answer.job or {}).get("phases", ())
    updates = {one["name"] for one in phases if one.get("work") != Work.FORWARD.value and "active" in one}
    return max(
        (
            int(sheet.at(when, without=()).high)
            for sheet in answer.sheets
            for when in sheet.instants
            if when.phase in updates - {GENERATION}
        ),
        default=0,
    )


def _plan_word(answer: Answer, one: EarlierWord) -> str:
    plan = answer.plan
    return str(plan.loss.value if one.at == "loss" else plan.recompute.mode.value)


def _keys_left_to_release(read: FileReading) -> frozenset[str]:
    """Keys that a file of TRL's, or a script's configuration of its, leaves to the library."""
    if _is_newer_method(read):
        return frozenset()
    if read.form.name != TRL:
        return frozenset(read.values.get(f"{SCRIPT}.{RELEASE_DEFAULTS}") or ())
    older = tuple(older_keys(class_of_method(str(dict(read.unmodelled).get("method", "SFT"))), read.values))
    return frozenset(left_to_release(read.values, older))


OF_EARLIER = frozenset({
    "sft", "dpo", "kto", "orpo", "cpo", "bco", "reward", "grpo", "rloo", "ppo", "gkd", "onlinedpo", "xpo", "nashmd", "prm",
})  # fmt: skip
"""Methods of TRL 0.21; others are of releases with the newer defaults."""


def _is_newer_method(read: FileReading) -> bool:
    """Whether a file is of a method that earlier releases have not."""
    told = (
        read.values.get(PROGRAM),
        read.values.get(f"{SCRIPT}.method"),
        dict(read.unmodelled).get("method"),
    )
    names = (str(one or "").removesuffix(".py").replace("_", "").lower() for one in told)
    return any(name in {method.lower() for method in METHODS.values()} - OF_EARLIER for name in names)


def _release_numbers(words: str) -> tuple[int, ...]:
    parts = words.split(".")[:2]
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
