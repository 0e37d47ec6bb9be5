"""Why the plans of a family are not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.words import format_seconds

if TYPE_CHECKING:
    from memsheet.search.train.families import Family


def family_rejection_reason(family: Family, look: Look) -> str:
    """Why a family is not the one."""
    if not family.fit:
        if family.host_missing_bytes:
            return f"host memory lacks {look.need(family.host_missing_bytes)} a node"
        if not family.missing_bytes:
            return "may fit, none is sure to"
        when = f" in {family.instant.value.replace('_', ' ')}" if family.instant else ""
        return f"{look.need(family.missing_bytes)} too much on rank {family.rank}{when}"
    if family.seconds is None:
        return "fits, its step is not timed"
    if not family.slower:
        return "as fast as the best"
    return f"slower by {format_seconds(family.slower_s)}, most of it {family.slower.replace('_', ' ')}"
