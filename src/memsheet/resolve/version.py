"""An engine's version as a plan says it: one that names no release is refused, one newer than what was read
is said to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.patterns import late_pattern
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.plan import Plan

NUMBER = late_pattern(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def check_version(gaps: RequestResolver, engine: Engine) -> None:
    """A version that stands for no release would be taken for the newest without a word."""
    version = gaps.request.get("engine_version")
    if version is not None and not re.search(engine.version_form, version):
        gaps.wrong("engine_version", version, f"names no release of {engine.name}", engine.version_example)


def version_notes(plan: Plan) -> Iterator[str]:
    """What a version is taken for that is newer than the newest one whose source was read."""
    engine = find_engine(plan.engine)
    asked = _version_number(plan.engine_version)
    read = _version_number(engine.tested) if engine and asked else None
    if asked is not None and read is not None and asked > read and engine is not None:
        yield (
            f"{plan.engine} {plan.engine_version} is newer than {engine.tested}, the newest that was "
            "read: it is taken to be like that"
        )


def _version_number(version: str | None) -> tuple[int, int, int] | None:
    found = NUMBER.match(version) if version else None
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None
