"""Options that only some engines have. What generic formulas ask of any of them stands here, with its value
where an engine has no such option; an engine with more has a class of its own
(``engines/<name>/options.py``).
"""

from __future__ import annotations

from typing import Any, Self

from memsheet.frozen import dataclass, fields
from memsheet.plan.dtypes import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """``captures``: a server records CUDA graphs. ``dispatch``: how tokens reach experts on other ranks: all
    are gathered everywhere, or sent (deepep). ``dp_dense``: with data-parallel attention, layers without
    experts are whole on every rank.
    """

    captures: bool = False
    dispatch: str = "gather"
    dp_dense: bool = False

    def of_one_group(self, groups: int) -> Self:
        """Those of one of the groups that attend by themselves, where an option counts over all of them."""
        del groups
        return self


def option_keys(options: EngineOptions) -> dict[str, Any]:
    """What a plan's ``serving`` says of options, where they are not the default: the engine's own first. The
    graphs have a word of their own there.
    """
    shared = ("dp_dense", "dispatch")
    own = [field.name for field in fields(options) if field.name not in (*shared, "captures")]
    usual = {field.name: field.default for field in fields(options)}
    said = {name: getattr(options, name) for name in (*own, *shared)}
    return {
        name: value.name if isinstance(value, DType) else value
        for name, value in said.items()
        if value != usual[name]
    }
