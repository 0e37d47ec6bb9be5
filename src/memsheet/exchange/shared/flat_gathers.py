"""When FullyShardedDataParallel gathers flat parameters ahead, in the words of accelerate's plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

PREFETCHES = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST", "none": "NO_PREFETCH"}
_KNOWN = {word: when for when, word in PREFETCHES.items()} | {"1": "pre", "2": "post"}
"""By name and by number (accelerate 1.15.0 utils/dataclasses.py:1892-1902)."""


def flat_gather_rows(
    prefix: str,
    is_flat: Callable[[Values], bool],
    source: str,
    *,
    older: str = "",
    engines: tuple[str, ...] = ("fsdp1",),
) -> Iterator[Key]:
    """Rows of a file whose keys begin with ``prefix``. Where nobody says it, nothing is gathered ahead, in
    backward either; ``older``: a key that an older release read in place of the first.
    """

    def backward(value: Any, values: Values) -> Mapping[str, Any]:
        word = str(values.get(older, value)).upper()
        return {"backward_prefetch": _KNOWN.get(word, word)} if is_flat(values) else {}

    def written(asked: Values) -> str | None:
        own = str(asked["engine"]) in engines
        return PREFETCHES.get(str(asked.get("backward_prefetch") or "pre")) if own else None

    def switch(name: str, *, usual: bool) -> Key:
        def back(value: Any, values: Values) -> Mapping[str, Any]:
            said = str(value).lower() == "true"
            return {name: said} if is_flat(values) and said is not usual else {}

        def out(asked: Values) -> bool | None:
            own = str(asked["engine"]) in engines and asked.get(name) not in (None, usual)
            return not usual if own else None

        return Key(at=f"{prefix}{name}", out=out, back=back, source=source)

    yield Key(
        at=f"{prefix}backward_prefetch", out=written, back=backward, usual=PREFETCHES["none"], source=source
    )
    yield switch("forward_prefetch", usual=False)
    yield switch("limit_all_gathers", usual=True)


SWITCHES = ("forward_prefetch", "limit_all_gathers")
WRAPPED_KEYS = ("backward_prefetch", *SWITCHES)


def wrapped_gathers(said: Mapping[str, Any]) -> dict[str, Any]:
    """What the arguments of a call of FullyShardedDataParallel say of gathers, where they are written out
    (torch 2.13 distributed/fsdp/fully_sharded_data_parallel.py:404-411); without a prefetch there is none.
    """
    found = {name: said[name] for name in SWITCHES if isinstance(said.get(name), bool)}
    if "backward_prefetch" not in said:
        return found
    word = said["backward_prefetch"]
    when = "none" if word is None else _KNOWN.get(str(word).rpartition(".")[2].upper())
    return {**({"backward_prefetch": when} if when else {}), **found}
