"""The traceback that ends at a message: its functions, its lines of code, what these say by their names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.frames import (
    FEED_FORWARD,
    FIRST_UPDATE,
    FRAMES,
    HEAD_LOGITS,
    LOGITS,
    REDUCED,
    SCORES,
    SERVED,
    SERVER_CACHE,
    TASKS,
    Frame,
)
from memsheet.diagnose.log_programs import SERVER_CODE

_FRAME = re.compile(
    r'^File "(?P<file>[^"\n]{1,400})", line \d{1,9}, in (?P<name>[\w<>.]{1,120})'
    r"|^File (?P<notebook>\S{1,400}\.py):\d{1,9}, in (?P<cell>[\w<>.]{1,120})"
    r"|^(?P<older>[\w./~-]{1,300}\.py) in (?P<called>[\w<>]{1,120})\("
    r"|^(?P<boxed>[\w./~-]{1,300}\.py):\d{1,9} in (?P<within>[\w<>]{1,120})\s*$"
)
"""A frame of Python's own traceback, of IPython's since 8 and before, of rich's."""
_ARROW = re.compile(r"(?:-{1,6}>|❱)\s{0,4}\d{1,6}[ │]{1,60}(\S.*)")
"""How notebooks and rich point at a frame's line of code."""
_SOURCE = re.compile(r"^[\w./-]{1,200}\.py:\d{1,9}: in ([\w.]{1,120})")
_MADE = (
    (
        re.compile(
            r"(?:^|=\s{0,3})(?:(?:shift|lm|flat|full|all)_)?logits(?:\[[^\]]{0,40}\])?(?:\.view\([^)]{0,60}\))?"
            r"\.(?:float\(\)|contiguous\(\)|to\(torch\.float(?:32)?\))"
        ),
        HEAD_LOGITS,
    ),
    (re.compile(r"\b(?:loss_fct|loss_fn|loss_func|criterion|loss_function)\(\s{0,3}\w{0,20}logits\b"), LOGITS),
    (re.compile(r"\bsoftmax\(\s{0,3}(?:attn|att|(?:attn|attention)_(?:weights?|scores|probs))\b"), SCORES),
    (re.compile(r"\b(?:att|(?:attn|attention)_(?:weights?|scores|probs))\s{0,3}\+?=(?!=).{0,80}(?:\b(?:matmul|bmm|softmax)\(|@ |mask\b)"), SCORES),
    (re.compile(r"^(?:self\.)?(?P<its>(?:attn|attention)_(?:weights?|scores|probs|logits))\s{0,3}[+*/]?=(?!=).{0,60}\b(?:attn|attention)_(?:weights?|scores|probs|logits)\b"), SCORES),
    (re.compile(r"^(?P<of>scores|sim|dots|att)\s{0,3}(?:[+*/]=|=(?!=)\s{0,3}(?P=of)\s{0,2}(?:[*/+]|\.(?:masked_fill|float|softmax|to)\())"), SCORES),
    (re.compile(r"\bsoftmax\(\s{0,3}scores\b"), SCORES),
    (re.compile(r"\b(?:attn|att|scores|sim|dots|attention|attn_weights)\s{0,3}=(?!=)\s{0,3}(?:self\.)?(?:attn|att|scores|sim|dots|attention|attn_weights)\.softmax\("), SCORES),
    (re.compile(r"\b(?:attn|att|scores|sim|dots|attn_weights)\s{0,3}=(?!=)\s{0,3}(?:torch\.)?einsum\("), SCORES),
    (re.compile(r"(?<![\w.])self\.(?:gate_up_proj|gate_proj|up_proj|down_proj|c_fc|dense_h_to_4h|dense_4h_to_h|linear_fc[12])\("), FEED_FORWARD),
    (re.compile(r"\b(?:act_fn|activation)\(\s{0,3}self\.(?:gate|w1)|\bintermediate_act_fn\("), FEED_FORWARD),
    (re.compile(r"\bscores\s{0,3}=(?!=).{0,40}\b(?:matmul|bmm)\((?:.{0,40}\btranspose\(|\s*$)", re.MULTILINE), SCORES),
    (re.compile(r"\b\w{0,20}(?:key|value)_cache\s{0,3}=(?!=)\s{0,3}torch\.(?:zeros|empty)\("), SERVER_CACHE),
    (re.compile(r"\btorch\.empty\(\s{0,3}(?:int\()?self\.reduce_bucket_size\b"), REDUCED),
    (re.compile(r"(?:\bstate\[[^\]\n]{1,30}\]|\bexp_avg(?:_sq)?|\bmomentum_buffer)\s{0,3}=\s{0,3}torch\.(?:zeros|empty|full)(?:_like)?\("), FIRST_UPDATE),
)  # fmt: skip
"""A traceback's lines of code that say by their names what they make, where no function's does
(microsoft/DeepSpeed 022f223, deepspeed/runtime/zero/stage_1_and_2.py, backward, and ops/adam/fused_adam.py,
step).
"""
_BUFFER = re.compile(
    r"\b(?:empty_strided_(?:cuda|xpu)"
    r"|torch\.(?:empty|zeros|ones|empty_strided))\("
    r"\s{0,3}[(\[]((?:\d{1,9},\s?){0,7}\d{1,9}),?[)\]]"
    r".{0,200}?\btorch\.(float32|bfloat16|float16)\b"
)
"""A buffer whose shape stands in the code (torch/_inductor/codegen/wrapper.py, make_allocation)."""
FRAMES_BEFORE, FRAMES_AFTER, ENDS_WITHIN = 400, 60, 30
"""Lines around a message that its traceback stands in; and between its last frame and the message."""


def traceback_of(log: Log, line: int) -> Sequence[str]:
    """The traceback that ends at a message, else the one behind it, else nothing: an earlier one of the log,
    or another rank's behind it, is another error's.
    """
    first = max(0, line - FRAMES_BEFORE)
    last = next(
        (number for number in range(line, max(first, line - ENDS_WITHIN) - 1, -1) if _is_frame(log.lines[number : number + 1])),
        None,
    )  # fmt: skip
    if last is None:
        behind = log.lines[line : line + FRAMES_AFTER]
        return behind if any(_is_frame((each,)) for each in behind) else ()
    begun = next((number for number in range(last, first - 1, -1) if "Traceback" in log.lines[number]), first)
    return log.lines[begun : line + 1]


def codes_of_frames(window: Sequence[str]) -> Iterator[str]:
    """The line of code of each frame of a traceback: the one that an arrow points at, else the one behind."""
    places = [place for place, each in enumerate(window) if _FRAME.match(each)]
    for place, following in itertools.pairwise((*places, len(window))):
        behind = window[place + 1 : following]
        pointed = (found[1] for each in behind if (found := _ARROW.match(each)))
        if (code := next(pointed, next(iter(behind), None))) is not None:
            yield code


def frame_of_code(window: Sequence[str]) -> Frame | None:
    """What the innermost line of code makes by its own names, where one says it."""
    made = (frame for code in codes_of_frames(window) for pattern, frame in _MADE if pattern.search(code))
    found = next(reversed(tuple(made)), None)
    serves = any(part in each for each in window for part in SERVER_CODE)
    return SERVED if serves and found is HEAD_LOGITS else found


def writes_scores(code: str) -> bool:
    """Whether a line of code makes attention scores by its own names, and nothing else of a layer."""
    return any(frame is SCORES and pattern.search(code) for pattern, frame in _MADE)


def written_buffer(window: Sequence[str]) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of the buffer that the innermost line of code of a traceback makes by plain numbers."""
    found = _BUFFER.search(innermost_code(window))
    return (tuple(int(axis) for axis in found[1].split(",")), found[2]) if found else None


def innermost_code(window: Sequence[str]) -> str:
    return next(reversed(list(codes_of_frames(window))), "")


def _is_frame(lines: Sequence[str]) -> bool:
    return any(_FRAME.match(each) or _SOURCE.match(each) for each in lines)


def names_of_frames(window: Sequence[str]) -> Iterator[str]:
    """The functions of a traceback; those that ``FRAMES`` or ``TASKS`` know by their file alone, with it."""
    for each in window:
        if found := _FRAME.match(each):
            path, called = (said for said in found.groups() if said is not None)
            name, parts = called.rpartition(".")[2], re.split(r"[/\\]", path)
            places = [part.removesuffix(".py") for part in parts[-3:]]
            known = (f"{place}.{name}" for place in reversed(places))
            yield next((each for each in known if each in FRAMES or each in TASKS), name)
        elif found := _SOURCE.match(each):
            yield found[1].rpartition(".")[2]
