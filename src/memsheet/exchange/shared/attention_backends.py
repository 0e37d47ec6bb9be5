"""The flag by which servers are told who computes attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

KERNELS = "serving.attention_kernels"


def attention_row(backends: Mapping[str, str], server: str, source: str) -> Key:
    """The row of ``--attention-backend``. ``backends``: the kernels that a plan has, by a server's word, the
    first of which is written; ``server``: who takes one by itself.
    """

    def read_word(value: Any, _: Values) -> Mapping[str, Any]:
        known = backends.get(value) if isinstance(value, str) else None
        return {KERNELS: known} if known else {}

    def written_word(asked: Values) -> str | None:
        kept = asked.get(KERNELS)
        return next((name for name, plan in backends.items() if plan == kept), None)

    return Key(
        at="--attention-backend",
        holds=tuple(backends),
        instead=f"the backend that {server} takes by itself",
        out=written_word,
        back=read_word,
        source=source,
    )
