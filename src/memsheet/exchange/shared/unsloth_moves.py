"""What Unsloth's own loss, layers, experts and tables take beside the library's, of which a sheet is."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.exchange.shared.file_format import Moved, Values
from memsheet.exchange.shared.peft_configs import trains_beside
from memsheet.exchange.shared.script_places import OWN_LAYERS, SCRIPT
from memsheet.exchange.shared.unsloth_loads import WHOLE_TABLES
from memsheet.sheet import Instant

EIGHTHS = 8
"""Pieces that a sheet's chunked loss is in."""
MOST_OF_A_PIECE, MADE, CAST, IN_SHEET = 4 * 2**30, 2, 4, 2 + 4 + 4 + 4
"""Of Unsloth's loss (unslothai/unsloth-zoo ce232d6 unsloth_zoo/fused_losses/cross_entropy_loss.py:139-178):
the most that a piece's logits take in fp32, and bytes of each: it is compiled, with the gradient written over
the logits as they were made (torch 2.13's inductor), or beside one copy of them in fp32 at most. The sheet's
piece is not: as made, in fp32, its logarithm and its gradient.
"""


def _pieces_of_unsloth(values: Values, asked: Values) -> Moved:
    """Pieces are as many as half of the memory that is free needs: one of all tokens, or very small ones.
    The gradient of a head that trains may be there twice.
    """
    tokens, vocab = asked["@tokens"], asked["@vocab"]
    eighth = -(-tokens // EIGHTHS) * vocab
    most = min(tokens * vocab, MOST_OF_A_PIECE // 4) * (MADE + CAST)
    head = 0 if trains_beside(values) else 2 * vocab * asked["@hidden"]
    why = (
        "Unsloth compiles the loss, in pieces of at most half the free memory and 4 GiB; the sheet is of an "
        "eighth of the tokens, not compiled"
    )
    more = max(0, most - eighth * (MADE + CAST)) + head
    return Moved(at="loss", why=why, low_bytes=-eighth * IN_SHEET, high_bytes=more, instant=Instant.LOSS)


KEPT_INPUTS = 2
"""Of a layer of Unsloth's in sixteen bits, at the least: what its projections to heads and its MLP are given
(unslothai/unsloth 0050c73 unsloth/kernels/fast_lora.py, LoRA_QKV and LoRA_MLP: save_for_backward).
"""


def unsloth_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """What a script that trains with Unsloth may take more or less than the sheet has."""
    if named := values.get(f"{SCRIPT}.{WHOLE_TABLES}"):
        yield _whole_tables_move(str(named), asked)
    if values.get(f"{SCRIPT}.unsloth") is True:
        yield _pieces_of_unsloth(values, asked)
    if values.get(f"{SCRIPT}.experts") is True and asked.get("@dequantized"):
        yield _experts_of_unsloth(asked)
    if values.get(f"{SCRIPT}.{OWN_LAYERS}") is True:
        yield _layers_of_unsloth(asked, again=values.get("gradient_checkpointing") is True)


def _layers_of_unsloth(asked: Values, *, again: bool) -> Moved:
    """Layers have saved tensors of their own, fewer than the library's, and a backward that writes over them.
    ``again``: one of them at a time, which is run again for it.
    """
    kept = KEPT_INPUTS * 2 * asked["@tokens"] * asked["@hidden"] * (1 if again else asked["@layers"])
    why = (
        "Unsloth runs layers of its own, which keep fewer tensors of a token than the library's, of which "
        "the sheet is"
    )
    return Moved(
        at=f"{SCRIPT}.{OWN_LAYERS}",
        why=why,
        low_bytes=-max(0, asked.get("@passing" if again else "@saved", 0) - kept),
        high_bytes=0,
        instant=Instant.BACKWARD if again else None,
    )


BLOCK, SCALE, PACKED = 64, 4, 4
"""Elements that share a scale, its bytes where they are kept whole, and how many times fewer bytes four bits
are than sixteen.
"""


def _experts_of_unsloth(asked: Values) -> Moved:
    """A layer's experts are made whole one matrix at a time, or one expert, and again for backward; gpt-oss'
    may keep scales in fp32 of every layer and join a layer's packed bytes (unslothai/unsloth-zoo ce232d6
    unsloth_zoo/temporary_patches/moe_utils_bnb4bit.py:147-165, gpt_oss.py:918-986, 1963-1990).
    """
    whole = asked["@dequantized"]
    scales = asked["@layers"] * (whole // 2) // BLOCK * SCALE + whole // PACKED
    why = (
        "Unsloth makes experts whole matrix by matrix or one at a time; the sheet is of all of a layer's "
        "until it has run"
    )
    return Moved(
        at="load_in_4bit",
        why=why,
        low_bytes=-whole,
        high_bytes=scales if asked["@model_type"] == "gpt_oss" else 0,
    )


LEAST_OF_TABLE, MOST_OF_TABLE = 2 + 2, (4 + 2) + 4 + 8
"""Bytes an element of a table that Unsloth trains whole: in the place of the frozen one, which goes to the
host, with a gradient in sixteen bits and moments in eight; or as a copy in fp32 beside it, cast for products,
with gradient and two moments in fp32 (unslothai/unsloth 0050c73 unsloth/models/llama.py,
_offload_frozen_module_for_training).
"""


def _whole_tables_move(named: str, asked: Values) -> Moved:
    table = asked["@vocab"] * asked["@hidden"]
    why = f"Unsloth trains {named} whole, in copies of their own, not by adapters; the sheet is without"
    return Moved(
        at=f"{SCRIPT}.{WHOLE_TABLES}",
        why=why,
        low_bytes=LEAST_OF_TABLE * table,
        high_bytes=(named.count(",") + 1) * MOST_OF_TABLE * table,
    )
