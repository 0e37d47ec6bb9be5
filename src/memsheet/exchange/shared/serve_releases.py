"""A server's command as another release of its engine reads it: what was removed since, and whose defaults
are told.
"""

from __future__ import annotations

import re

from memsheet.exchange.shared.file_format import Format
from memsheet.frozen import replace
from memsheet.patterns import late_pattern

_WITHOUT_BYTES = """
swap-space preemption-mode scheduler-delay-factor guided-decoding-backend guided-decoding-disable-fallback
guided-decoding-disable-any-whitespace guided-decoding-disable-additional-properties disable-log-requests disable-async-output-proc
disable-mm-preprocessor-cache max-num-partial-prefills max-long-partial-prefills logits-processor-pattern enable-reasoning
tokenizer-pool-size tokenizer-pool-type tokenizer-pool-extra-config device
"""
"""Removed flags of vLLM that moved no byte of a GPU: of logs, of who is served first, of the host
(v0.6.4.post1 and v0.8.5 engine/arg_utils.py).
"""
_NUMBER = late_pattern(r"(\d+)\.(\d+)(?:\.(\d+))?")


CHUNKED, ALWAYS_CHUNKED = "--enable-chunked-prefill", ((0, 8, 0), (0, 12, 0))
"""Releases whose V1 engine chunks prompts whatever is said (arg_utils.py of 0.8.5, _set_default_args_v1; of
0.11.0, lines 1546-1548), from the first to before the second.
"""
ENGINE_CHOICE, NEWER_ENGINE = "VLLM_USE_V1", (0, 8, 0)
"""The variable that chooses vLLM's engine, and the release from which its second is the usual one (v0.7.3
envs.py: off).
"""


def vllm_of(form: Format, version: str) -> Format:
    found = _format_of_release(
        form, "vLLM", version, frozenset(f"--{name}" for name in _WITHOUT_BYTES.split())
    )
    if (number := _NUMBER.search(version)) and _version_numbers(number) < NEWER_ENGINE:
        found = replace(found, unmodelled={**found.unmodelled, ENGINE_CHOICE: (0,)})
    first, after = ALWAYS_CHUNKED
    told = _NUMBER.search(version)
    if told is None or not first <= _version_numbers(told) < after:
        return found
    return replace(
        found,
        keys=tuple(row for row in found.keys if row.at != CHUNKED),
        unmodelled={at: held for at, held in found.unmodelled.items() if at != CHUNKED},
        known=found.known | {CHUNKED},
    )


def sglang_of(form: Format, version: str) -> Format:
    return _format_of_release(form, "SGLang", version, frozenset())


def _format_of_release(form: Format, name: str, version: str, harmless: frozenset[str]) -> Format:
    """The format under the release's name. Flags that an older one had are known to it, or not accounted
    where they took room.
    """
    told = f"{name} {version.removeprefix('v')}"
    if not _is_older_release(version, form.tested):
        return replace(form, tested=told, keys_of=form.tested)
    gone = form.removed
    return replace(
        form,
        tested=told,
        removed=frozenset(),
        known=form.known | (gone & harmless),
        unmodelled={**form.unmodelled, **dict.fromkeys(gone - harmless, ())},
    )


def _is_older_release(version: str, tested: str) -> bool:
    mine, theirs = _NUMBER.search(version), _NUMBER.search(tested)
    return bool(mine and theirs) and _version_numbers(mine) < _version_numbers(theirs)


def _version_numbers(found: re.Match[str] | None) -> tuple[int, ...]:
    return tuple(int(part or 0) for part in found.groups()) if found else ()
