"""An engine's version as a plan says it: one that names no release is refused, one newer than what was read
is said to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.plan import Plan

RELEASED = {
    "vllm": (re.compile(r"\d+\.\d+|^V[01]\b"), "a release, for example 0.11.0"),
    "sglang": (re.compile(r"^v?\d+\.\d+\.\d+"), "a release with three numbers, for example 0.5.12"),
    "llama.cpp": (re.compile(r"\d|ik_llama"), "a build or commit, for example b7342, or ik_llama.cpp"),
}
"""How engines whose facts are kept release by release name one (``engines.vllm.facts.release_of``,
``engines.sglang.facts.release_of``).
"""
ANY = re.compile(r"\d"), "a release, a commit or a date, for example 5.13.1 (torch 2.13.0)"
NUMBER = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def check_version(gaps: RequestResolver, engine: Engine) -> None:
    """A version that stands for no release would be taken for the newest without a word."""
    version = gaps.request.get("engine_version")
    form, example = RELEASED.get(engine.name, ANY)
    if version is not None and not form.search(version):
        gaps.wrong("engine_version", version, f"names no release of {engine.name}", example)


def version_notes(plan: Plan) -> Iterator[str]:
    """What a version is taken for that is newer than the newest one whose source was read."""
    engine = find_engine(plan.engine)
    asked, read = _version_number(plan.engine_version), _version_number(engine.tested if engine else None)
    if asked is not None and read is not None and asked > read and engine is not None:
        yield (
            f"{plan.engine} {plan.engine_version} is newer than {engine.tested}, the newest that was "
            "read: it is taken to be like that"
        )


def _version_number(version: str | None) -> tuple[int, int, int] | None:
    found = NUMBER.match(version or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None
