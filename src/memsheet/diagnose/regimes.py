"""A run that becomes another: what says that steps of a training stand before a message, and that more is
trained, or something else, from a step on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.denials import is_denied, said_of
from memsheet.diagnose.survived import goes_on
from memsheet.diagnose.tongues import (
    DIES,
    EVALUATION,
    FINE,
    SAVES,
    TRAINING,
    clause_with_all,
    resumption_alone_dies,
    unfreezing_clause_abroad,
)
from memsheet.frozen import NamedTuple

_STEP_NUMBER = re.compile(
    r"\b(?:(?:update|num_updates|global_step|iteration|iter|step|it|i)s?|paso|passo|Schritt|étape|krok|adım|bước|шаг\w{0,2})\b[\s:=#|'\"]{1,6}(\d[\d,]{0,11})",
    re.IGNORECASE,
)  # fmt: skip
_TRAINED = re.compile(
    r"\b(?:learning_rate|train_loss)['\"]?\s{0,3}[:=]|\bgrad_?norm['\"]?\s{0,3}[:=]|\blr\s{0,3}[:=]\s{0,3}\d"
    r"|[\"']loss[\"']: [^\n{}]{1,200}[\"']epoch[\"']:"
    r"|Running training"
    r"|^(?![^\n]{0,200}(?:eval|valid|test))[^\n]{0,200}\b(?:epoch|step|iter(?:ation)?)s?\b"
    r"[\s:=\[#]{0,4}\d[^\n]{0,120}?\bloss[\"']?[\s:=]{1,4}\d",
    re.IGNORECASE | re.MULTILINE,
)
"""What a step of a training prints, and no evaluation."""
_RAN = re.compile(
    r"\b(?:after|for|ran|runs|trained|trains?|fine)\b[^\n.]{0,30}?\b[1-9][\d,]{0,9}k?\s(?:training\s)?"
    r"(?:steps|iterations|iters|epochs?|updates)\b",
    re.IGNORECASE,
)
"""How people say that steps ran."""
_THAWS = re.compile(r"\bun-?freez(?:ing|ed)\b|\bunfroze\b|\bthaw(?:ing|ed)\b", re.IGNORECASE)
_TRAINS_MORE = re.compile(r"^(?!\s*(?:for\b|[\w.]+\.requires_grad_?)).{0,160}?\brequires_grad_?\(True\)")
"""The same by the call that does it, in a line that is no script's."""
_THAWS_AT_ALL = re.compile(
    r"\bun-?fr[eo]+z\w*\b|\bthaw\w*\b|\brequires_grad_?(?:\(| ?= ?)True\b", re.IGNORECASE
)
"""What a run says that trains more from here on: its own words, no setting's name."""
_COUNTED = r"(\d[\d,]{0,15}(?:\.\d{1,6})?)\s?([KMB]?)"
_TRAINABLE = re.compile(
    rf"\btrainable[ _]param(?:eter)?s?\b.{{0,20}}?{_COUNTED}\s?(?:->|→|=>)\s?{_COUNTED}", re.IGNORECASE
)
"""The same by how many parameters are trained before and from there on."""
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
_LATER = re.compile(
    r"\b(?:epoch|step|iter(?:ation)?|stage|phase)s?\b[\s:=\[#]{0,4}(?!0+\b|1\b)\d", re.IGNORECASE
)
"""An epoch, a step or a stage of a run that is not its first."""
_CHANGES = (
    r"freez|froze|thaw|curriculum|switch|stage|phase"
    r"|(?:disc|adv|gan|ema|swa|qat|quant|distill|teacher)\w{0,30}(?:start|after|begin|from)"
    r"|(?:reg|penalty|r1|ppl|pl|fid|sample|eval|val|valid|save|saving|checkpoint|ckpt)\w{0,20}[_-](?:every|interval|freq\w{0,6}|steps|iters|epochs)"
)  # fmt: skip
"""What settings are called by which a run becomes another: more is trained, longer samples come, another
model or a copy of this one takes part.
"""
_CHANGES_NAMED = re.compile(_CHANGES, re.IGNORECASE)
_CHANGE_AT = re.compile(
    rf"\b(?=[\w-]{{0,60}}(?:{_CHANGES}))(\w[\w-]{{0,60}}?(?:updates?|steps?|iter(?:ation)?s?|epochs?|start|every|interval|freq\w{{0,6}}))"
    r"(?:[\"']?\s{0,3}[:=]\s{0,3}[\"']?|(?<=[a-z]) )(\d{1,12})\b",
    re.IGNORECASE,
)  # fmt: skip
_LISTED_AT = re.compile(
    r"\b(?P<name>\w{0,40}(?:steps?|epochs?|iter(?:ation)?s?|milestones?|updates?))[\"']?\s{0,3}[:=]\s{0,3}\[(?P<list>\s?\d{1,9}(?:,\s?\d{1,9}){0,15}),?\s?\]", re.IGNORECASE
)  # fmt: skip
_OF_RATE = re.compile(r"lr|rate|warm|sched(?!ule_config)|log", re.IGNORECASE)
NEAR, MOST_LISTS = 300, 64
"""Letters before a list of steps that name what becomes another at each, and lists that are looked at."""
_SAID_AT = re.compile(
    r"\b(?:un-?fr[eo]+z\w{0,4}|thaw\w{0,3})\b(?:[^\n.;]{0,60}?\b(?:at|from|after|in|on|before)\b)?\s(?:the\s)?"
    r"(?P<unit>epoch|step|iteration)s?\s(?P<number>\d[\d,]{0,11})\b"
    r"|\b(?:freez\w{0,3}|frozen|froze)\b[^\n.;]{0,60}?\b(?:for|during|until|in)\s(?:the\s)?(?:first\s)?"
    r"(?P<count>\d[\d,]{0,11})\s(?P<of>epoch|step|iteration)s?\b",
    re.IGNORECASE,
)  # fmt: skip
"""The same as people write of it."""
_EPOCH = re.compile(r"\bepochs?\b[\s:=\[#|]{1,6}(\d{1,6})(\s?/\s?\d{1,6}\b)?", re.IGNORECASE)
_OF_EPOCH = re.compile(r"(?<![\d/.])(\d{1,9})\s?/\s?\d{1,9}\b(?!\s?/)")
"""How far a bar of progress has come."""


class Change(NamedTuple):
    """What a run says of when it becomes another, and in which unit."""

    words: str
    unit: str

    @property
    def thaws(self) -> bool:
        """Whether more is trained from there on."""
        return any(said in self.words.lower() for said in ("freez", "froze", "thaw"))


def trained_before(log: Log, line: int, *, saves: bool) -> bool:
    """Whether steps of a training stand in the log before a message, of which the traceback shows no
    function. ``saves``: whether it shows one that saves, which a numbered step alone does not.
    """
    before = "\n".join(log.lines[:line])
    stepped = saves and any(int(number.replace(",", "")) > 0 for number in _STEP_NUMBER.findall(before))
    return stepped or bool(_TRAINED.search(before)) or (saves and bool(_RAN.search(log.text)))


def thawing_words(log: Log, line: int) -> str:
    """By which words a run said before a message that it trains more from there on, where it had trained less
    before and no two steps stand between.
    """
    before = log.lines[:line]
    places = range(len(before) - 1, -1, -1)
    place, words = next(((each, said) for each in places if (said := _words_of_line(before[each]))), (0, ""))
    if not words or goes_on(before[place + 1 :]):
        return ""
    earlier = "\n".join(before[: place + 1])
    return words if _LATER.search(earlier) or _TRAINED.search(earlier) else ""


_PLACE_OF_RUN = re.compile(
    r"\b(?:(?:epoch|step|iteration|stage|phase) ?#?\d|(?:first|second|2nd|third|next|last) (?:stage|phase|epoch)|(?:once|when|as soon as|after|until|then|and)\b[^\n]{0,60}\b(?:un-?fr[eo]+z\w*|thaw\w*))",
    re.IGNORECASE,
)  # fmt: skip
_FROZEN = re.compile(
    r"\b(?:epochs?|steps?|stage|phase)\b[^\n]{0,40}\b(?:frozen|froze|freez\w{1,3}|head only|only the head)\b", re.IGNORECASE
)  # fmt: skip
"""A part of a run in which less is trained."""
_SETTING = re.compile(r"\w_un-?fr[eo]+z|un-?fr[eo]+z\w*_\w|un-?fr[eo]+z\w*\s?[=(]", re.IGNORECASE)


def unfreezing_clause(text: str) -> str:
    """By which words people say that a run which fitted trains more from some place on, and died there."""
    for found in _THAWS_AT_ALL.finditer(text):
        before = text[max(0, found.start() - SENTENCE_BEFORE) : found.start()].rpartition("\n")[2]
        said = before + text[found.start() : found.end() + SENTENCE_BEHIND].partition("\n")[0]
        fitted = _RAN_FINE.search(text) or _FROZEN.search(text, 0, found.start())
        denied = is_denied(text, found.start(), found.end())
        if _PLACE_OF_RUN.search(said) and not (_SETTING.search(said) or denied) and fitted:
            return found.group()
    return unfreezing_clause_abroad(text)


SENTENCE_BEFORE, SENTENCE_BEHIND = 80, 120
"""Letters around a word that say where in a run it is."""
_FRESH_FITS = re.compile(
    r"\b(?:fresh(?:ly)?|from scratch|new run|first run|initial run|from the (?:start|beginning)|without (?:resum\w+|(?:a |the )?(?:checkpoint|ckpt)\w*))\b"
    r"[^\n]{0,60}?\b(?:fine|works?|worked|ok(?:ay)?|fits?|no problem|no oom|trains?|runs?|(?:left over|to spare|left|free))\b",
    re.IGNORECASE,
)  # fmt: skip
_RESUMES = re.compile(
    r"\bresum\w+|\bcontinu\w+ (?:from|the training|training)\b|\bfrom (?:a |the )?checkpoint\b|\breload\w* (?:the )?checkpoint\b|\brestor(?:e|es|ed|ing)\b|\bckpt_path\b",
    re.IGNORECASE,
)  # fmt: skip


_RAN_FINE = re.compile(
    r"\b(?:train(?:ed|ing|s)?|ran|run(?:s|ning)?|phase|stage|first|steps?|epochs?|hours?|\d+ ?h|days?|iterations?|was|were|before)\b[^\n.;]{0,50}?"
    r"\b(?:fine|ok(?:ay)?|no problems?|(?:without|w/o) (?:a |any )?(?:problems?|oom|issues?)|perfect(?:ly)?|good|well|smooth(?:ly)?|happily)\b"
    r"|\b(?:fine|ok(?:ay)?|no problems?|perfect(?:ly)?|good|well|smooth(?:ly)?|happily)\b[^\n.;]{0,20}? (?:for|until|till|during|over) [^\n.;]{0,20}?\b(?:\d[\d,.k]*|hours?|days?|steps?|epochs?)\b",
    re.IGNORECASE,
)  # fmt: skip
_DIES_RESUMED = re.compile(
    r"\b(?:resum\w+|continu\w+ (?:from|the training|training)|restart\w* from|reload\w* (?:the )?(?:checkpoint|optimizer)|load\w* (?:the |my |a )?(?:checkpoint|optimizer(?: states?)?))\b"
    r"(?:(?!\b(?:again|steps?|epochs?|hours?|iterations?)\b)[^\n;]){0,80}?\b(?:oom\w*|out of memory|crash\w*|die[sd]?|fail\w*|explode\w*|not fit)\b"
    r"|\b(?:oom\w*|out of memory|crash\w*|die[sd]?|fail\w*)\b[^\n.;]{0,50}?\b(?:on|when|while|after|at|upon|during|if)\b[^\n.;]{0,20}?\b(?:resum\w+|continu\w+ (?:from|training)|(?:re)?load\w* (?:the |my |a )?checkpoint)\b",
    re.IGNORECASE,
)  # fmt: skip
_TRAINS_ON = re.compile(
    r"\bresum\w+[^\n.;]{0,40}?\b(?:and|then|it)\b[^\n.;]{0,20}?\b(?:trains?|runs?|works?|goes)\b[^\n.;]{0,20}?\b(?:fine|ok|for|until)\b",
    re.IGNORECASE,
)  # fmt: skip
"""The same of one that trains on for a while."""


def fits_unless_resumed(text: str) -> bool:
    """Whether people say that a run fits from its beginning, or fitted, and dies where it goes on from a
    checkpoint.
    """
    fresh = bool(_FRESH_FITS.search(text) and _RESUMES.search(text))
    dies = _RAN_FINE.search(text) and _DIES_RESUMED.search(text) and not _TRAINS_ON.search(text)
    return fresh or bool(dies) or resumption_alone_dies(text)


def _words_of_line(line: str) -> str:
    if found := _THAWS.search(line) or _TRAINS_MORE.search(line):
        return found.group()
    found = _TRAINABLE.search(line)
    return found.group() if found and _counted(*found.groups()[:2]) < _counted(*found.groups()[2:]) else ""


def _counted(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _TIMES[unit.upper()]


_DIFFICULTY = re.compile(
    r"\bcurriculum[ _](?:seq_?len\w*|length|difficulty)[\"']?\s{0,3}[:=]\s{0,3}(\d{1,9})", re.IGNORECASE
)
"""How long samples of a curriculum are at a step (EleutherAI/gpt-neox, megatron/training.py,
training_log).
"""


_RAISED = re.compile(
    r"(?P<name>[^\W\d_]{3,20})[\]\"'):= ]{1,4}(?P<before>\d{1,6})(?:px)?\s?(?:->|→|=>|to)\s?(?P<behind>\d{1,6})(?![\w.]?\d)"
)  # fmt: skip
"""Any name of which a line says that its number became a larger one."""
_NO_SIZE = re.compile(
    r"loss|lr|rate|acc|score|mem|alloc|vram|epoch|step|iter|best|from|patience|version|rank|gpu|port",
    re.IGNORECASE,
)
_SIZE_RAISED = re.compile(
    r"\b(?P<name>(?:max_?)?seq(?:uence)?[_ ]?len\w{0,4}|context(?:[_ ]\w{1,8})?|(?:max_?)?length|resolution|image[_ ]?size|img_?size|crop(?:[_ ]size)?|(?:num_)?frames|micro_?batch\w{0,6}|batch[_ ]?size|difficulty|rollout\w{0,8}|horizon)\b"
    r"\W{0,4}(?P<before>\d{1,9})\s?(?:->|→|=>|to)\s?(?P<behind>\d{1,9})\b",
    re.IGNORECASE,
)  # fmt: skip
_STAGE_BEGUN = re.compile(
    r"\b(?:start|enter|begin|switch|mov|advanc|chang)\w{0,4} (?:\w+ ){0,2}(?:stage|phase|level)[ #:=]{0,3}(?:[2-9]|II|III|B)\b|\b(?:stage|phase|level)[ #]?[2-9]\b[^\n]{0,20}\b(?:starts?|begins?|started)\b",
    re.IGNORECASE,
)  # fmt: skip
JUST_BEFORE = 12
"""Lines before a message, without its traceback, in which a run says that it becomes another."""


def raised_size(line: str) -> re.Match[str] | None:
    """Where a line of a log says that a size becomes another."""
    if found := _SIZE_RAISED.search(line):
        return found
    found = _RAISED.search(line)
    return None if found is None or _NO_SIZE.search(found["name"]) else found


def _harder_samples(log: Log, line: int) -> Change | None:
    """The last words of a run before a message, where it had just made samples longer or larger, or begun
    another stage, behind steps that fitted.
    """
    said = [int(each) for each in _DIFFICULTY.findall("\n".join(log.lines[: line + 1]))]
    if len(said) > 1 and said[-1] > said[-2]:
        return Change(f"samples of the curriculum are {said[-1]:,} long in place of {said[-2]:,}", "step")
    begun = next((at for at in range(line, -1, -1) if "Traceback" in log.lines[at]), line)
    places = range(begun - 1, max(-1, begun - 1 - JUST_BEFORE), -1)
    for at in places:
        raised, stage = raised_size(log.lines[at]), _STAGE_BEGUN.search(log.lines[at])
        grows = raised is not None and int(raised["behind"]) > int(raised["before"])
        if (
            (grows or stage)
            and _TRAINED.search("\n".join(log.lines[:at]))
            and not goes_on(log.lines[at + 1 : line])
        ):
            return Change(f'the run had just said "{(raised if grows else stage).group()}"', "step")  # type: ignore[union-attr]
    return None


def change_of_run(log: Log, line: int) -> Change | None:
    """A setting of the text, or a sentence, by which the run changes after a step or from an epoch on, where
    that step is the last that the text names, or the message stands at that epoch's beginning.
    """
    if harder := _harder_samples(log, line):
        return harder
    changes = [each for each in _regime_change_clause(log.text) if each[2] > 0]
    if not changes:
        return None
    steps = [int(number.replace(",", "")) for number in _STEP_NUMBER.findall(log.text)]
    epochs = _epochs_of(log, line)
    for words, unit, number in changes:
        if unit in ("epoch", EITHER) and number in epochs:
            return Change(words, "epoch")
        if unit != "epoch" and steps and max(steps) - number in (0, 1):
            return Change(words, "step")
    return None


EITHER = "epoch or step"


_FIRST_STEPS = re.compile(
    r"\bthe first (?P<count>\d[\d,]{0,11}) (?P<of>epoch|step|iteration)s?\b[^\n]{0,50}?\b(?:then|after(?:wards| that| which)?|later|from there|when|once|but|until)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that a run is another one behind its first steps."""


_UNIT_AND_NUMBER = r"(?:the )?(?P<unit>epoch|step|iteration)s? (?:#|no\.? ?)?(?P<number>\d[\d,]{0,11})\b"
_UNTIL = re.compile(
    rf"\b(?:until|till|up to|through) {_UNIT_AND_NUMBER}[^\n]{{0,50}}?\b(?:then|after(?:wards| that| which)?|later|from there|and)\b"
    r"|\b(?:hasta|até|bis(?: zu)?|jusqu'à|fino al?|до|do) (?:el |o |l'|la |la |dem )?(?P<of>época|epoch|Epoche|époque|epoca|эпох\w{1,2}|paso|passo|Schritt|étape|шаг\w{0,2}|krok\w?) (?P<count>\d[\d,]{0,11})[^\n]{0,50}?(?:luego|después|depois|dann|danach|puis|poi|потом|затем|potem)",
    re.IGNORECASE,
)  # fmt: skip
_BEGINS = re.compile(
    r"\b[\w-]{2,40}(?: [\w-]{1,20}){0,2} "
    r"(?:starts?|begins?|kicks? in|joins?|switch(?:es)?|(?:is|are|gets?) (?:\w+ )?(?:enabled|activated|turned on|switched on|added|unlocked|started)|turns? on|comes? in|changes?|doubles?|increases?|rises?|grows?)"
    rf" (?:[^\n.;]{{1,30}}? )?(?:only )?(?:at|from|after|on|in|with) {_UNIT_AND_NUMBER}"
    rf"|\b(?:from|at) (?P<of>epoch|step|iteration) (?P<count>\d[\d,]{{0,11}})(?: on(?:wards?)?)?,? (?:we|I|the (?!loss|memory|oom|error|run|training|process|job|gpu)[\w-]+) (?:[\w-]+ )?(?:add|enable|switch|use|train|increase|double|raise|start|turn|activate|unlock|introduc|begin)\w*",
    re.IGNORECASE,
)  # fmt: skip
"""How they say that something joins it, or that it becomes larger, at a step."""
_NO_CHANGE = re.compile(
    r"\b(?:it|oom\w*|errors?|memory|vram|crash\w*|leak\w*|loss (?:\w+ )?(?:changes?|doubles?|increases?|rises?|grows?)|usage|problem|lr|learning[ _-]rate|schedul\w*|training|trainer|run|job|process|fails?|failure|resum\w*)\b",
    re.IGNORECASE,
)  # fmt: skip
"""What begins at a step without making it another: the run itself, or its failure."""


def _regime_change_clause(text: str) -> Iterator[tuple[str, str, int]]:
    for found in _FIRST_STEPS.finditer(text):
        yield f'the text says "{found.group()}"', found["of"].lower(), int(found["count"].replace(",", ""))
    for name, said in _CHANGE_AT.findall(text) if _CHANGES_NAMED.search(text) else ():
        unit = "epoch" if "epoch" in name.lower() else EITHER if name.lower().endswith("start") else "step"
        yield f"{name} is {int(said):,}", unit, int(said)
    for pattern in (_UNTIL, _BEGINS):
        for found in pattern.finditer(text):
            if _NO_CHANGE.search(found.group()):
                continue
            groups = found.groupdict()
            unit, number = groups["unit"] or groups["of"], groups["number"] or groups["count"]
            unit = "epoch" if unit[:2].lower() in ("ep", "ép", "эп") else unit.lower()
            yield f'the text says "{found.group().strip()}"', unit, int(number.replace(",", ""))
    for found in islice(_LISTED_AT.finditer(text), MOST_LISTS) if _CHANGES_NAMED.search(text) else ():
        if _CHANGES_NAMED.search(text, max(0, found.start() - NEAR), found.end()) and not _OF_RATE.search(
            found["name"]
        ):
            unit = "epoch" if "epoch" in found["name"].lower() else "step"
            for said in found["list"].replace(" ", "").strip(",").split(","):
                yield f"{found['name']} has {int(said):,}", unit, int(said)
    for found in _SAID_AT.finditer(text):
        unit, said = found["unit"] or found["of"], found["number"] or found["count"]
        yield f'the text says "{found.group()}"', unit.lower(), int(said.replace(",", ""))


def _epochs_of(log: Log, line: int) -> tuple[int, ...]:
    """The epoch, counted from 0 or from 1, at whose beginning a message stands; none where steps of it, or
    another epoch's losses, stand between.
    """
    places = [*range(line, -1, -1), *range(line + 1, len(log.lines))]
    place = next((each for each in places if _EPOCH.search(log.lines[each])), None)
    if place is None:
        return ()
    said = list(_EPOCH.finditer(log.lines[place]))[-1]
    bar = _OF_EPOCH.search(log.lines[place], said.end())
    first = next(
        each for each, told in enumerate(log.lines)
        if any(found[1] == said[1] for found in _EPOCH.finditer(told))
    )  # fmt: skip
    if (bar and int(bar[1]) > 1) or goes_on(log.lines[first:line]):
        return ()
    return (int(said[1]), int(said[1]) - 1) if said[2] else (int(said[1]),)


_OF_EVALUATION = r"(?:sampling|validation|evaluation|eval|(?:model|trainer)\.evaluate|evaluating|validating)"
_DIES = r"(?:die|crash|fail|oom|out of memory|boom|explode|kill)"
_EVALUATION_SAID = re.compile(
    r"\b(?:die|crash|fail|oom|stop|break)(?:e?s|ed)?\b[^\n.,]{0,30}?\b(?:in|at|during|when|once|on)\b[^\n.,]{0,30}?\b(?:validation|evaluation|eval)\b"
    rf"|\b{_OF_EVALUATION}\b(?: (?:loop|step|pass|phase))?[:,]? (?:always |then |still )?{_DIES}"
    rf"|\b{_OF_EVALUATION}\b(?:(?!\btrain)[^\n.]){{0,20}}?\b(?:start|begin|run|kick)\w{{0,5}}\b(?:(?!\btrain)[^\n.]){{0,70}}?\b{_DIES}"
    rf"|\b(?:first|1st|initial) {_OF_EVALUATION}\b[^\n.]{{0,40}}?\b{_DIES}"
    rf"|\b{_OF_EVALUATION}\b(?:(?!\btrain)[^\n.]){{0,50}}?\bruns? out of memory\b"
    r"|\b(?:oom|out of memory|crash\w*)\b[^\n.,]{0,20}?\b(?:in|at|during|when|once|on)\b[^\n.,]{0,30}?\b(?:validat|evaluat)\w+",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that a training runs, and its evaluation does not."""
_TRAINS_SAID = re.compile(
    r"\b(?:train(?:s|ing|ed|ing loop)?|fine-?tun\w+|the steps)\b(?:(?!\b(?:die|crash|fail|oom))[^\n.;]){0,40}?\b(?:fine|ok(?:ay)?|no problems?|without (?:a |any )?(?:problems?|issues?|oom)|works?|perfect(?:ly)?|stable|good|well|smooth(?:ly)?|runs?|fits?)\b"
    r"|\btraining itself\b",
    re.IGNORECASE,
)  # fmt: skip
"""How they say that its steps fit."""


def says_evaluation_dies(text: str) -> bool:
    """Whether people say that a job died in its evaluation."""
    return bool(said_of(_EVALUATION_SAID, text) or clause_with_all(text, EVALUATION, DIES))


def evaluates_first(text: str) -> bool:
    """Whether a text says that its evaluation comes before the first step."""
    return bool(_EVALUATES_FIRST.search(text))


_EVALUATES_FIRST = re.compile(
    r"eval_on_start[\"']?\s?[:=]\s?true|\bsanity[ _-]check|\b(?:eval\w*|validat\w*)\b[^\n.;]{0,40}?\bbefore (?:the |any )?(?:train\w*|first step)\b",
    re.IGNORECASE,
)  # fmt: skip


def says_training_fits(text: str) -> bool:
    """Whether people say that the steps of a training run."""
    return bool(_TRAINS_SAID.search(text) or clause_with_all(text, TRAINING, FINE))


def checkpoint_saving_clause(text: str) -> str:
    """By which clause people say that a run died as it saved a checkpoint, whose steps they say fitted."""
    fitted = says_training_fits(text) or _RAN_FINE.search(text)
    return clause_with_all(text, SAVES, DIES) if fitted else ""
