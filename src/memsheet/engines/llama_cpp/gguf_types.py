"""Types that a tensor of a GGUF file may have by the file's name alone: those that a quantizer gives with and
without an importance matrix, and in files of own rules those that their makers raise.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.engines.llama_cpp.gguf_fork import FORK_MIXES, fork_end, fork_type
from memsheet.engines.llama_cpp.gguf_mixes import (
    EXPERTS_ALONE,
    MIXES,
    WHOLE,
    Where,
    end_type,
    matrix_type,
    mix_named,
)
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import GGUF

RULED = (*WHOLE, EXPERTS_ALONE)
"""Types of which no quantizer makes another."""
SAME_RULES = {"attn_qkv": ("attn_qkv", "attn_v")}
"""Joined projections follow the rules of values since the quantizer sorts tensors into kinds, and had rules
of their own before (llama-quant.cpp, category_is_attn_v).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What a file's name says of its types. ``own_rules``: its maker decides which tensors have more bits."""

    name: str
    fork: bool
    own_rules: bool

    @staticmethod
    def of(named: str, *, fork: bool) -> Mix:
        """The mix of a name (``Q4_K_M``, ``UD-Q4_K_XL``), as written by the quantizer of an engine."""
        name, own_rules = mix_named(named)
        forks_alone = fork and name in FORK_MIXES and name not in MIXES
        return Mix(name=name, fork=fork, own_rules=own_rules or forks_alone)

    @property
    def main(self) -> str:
        """The type of most tensors."""
        return (MIXES.get(self.name) or FORK_MIXES.get(self.name) or (self.name,))[0]


def types_of_matrix(mix: Mix, kind: str, where: Where, row: int) -> tuple[str, ...]:
    """Types that a layer's matrix may have, the one of the engine's own quantizer without an importance
    matrix first. A fork reads the main project's files too.
    """
    writers = (fork_type, matrix_type) if mix.fork else (matrix_type,)
    found = (
        writer(mix.name, one, replace(where, weighted=weighted), row)
        for writer in writers
        for one in SAME_RULES.get(kind, (kind,))
        for weighted in (False, True)
    )
    return tuple(dict.fromkeys(found))


def types_of_end(mix: Mix, *, output: bool, tied: bool, row: int) -> tuple[str, ...]:
    """Types that the table of tokens, or the output matrix, may have, the engine's own first."""
    main = end_type(mix.name, output=output, row=row)
    forks = (fork_end(mix.name, output=output, tied=tied, row=row),) if mix.fork else ()
    return tuple(dict.fromkeys((*forks, main)))


def type_range(mix: Mix, kind: str, types: Iterable[str], elements: int) -> tuple[int, int]:
    """Bytes that a matrix takes at least and at most: at least in the main type all through, of which no file
    has less unless its maker says so; at most by the rules, and where they are its maker's own in eight bits
    what attends and gives words, and in six what projects down.
    """
    sizes = [int(GGUF[name].nbytes(elements)) for name in (mix.main, *types)]
    return min(sizes), max(sizes + [int(GGUF[name].nbytes(elements)) for name in _raised(mix, kind)])


def _raised(mix: Mix, kind: str) -> tuple[str, ...]:
    if not mix.own_rules:
        return ()
    if kind == "ffn_down":
        return ("Q6_K",)
    wide = kind.startswith(("attn", "ssm", "output")) or kind in MATRICES_OF_LATENTS
    return (("F16",) if mix.main in WHOLE else ("Q8_0",)) if wide else ()


MATRICES_OF_LATENTS = frozenset({"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"})
