"""Models of which a part trains: single layers, where the others are frozen, and modules that train whole
beside adapters. Lines are of ``src/llamafactory`` at its commit ff6d4d1 (0.9.6.dev0).
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.exchange.formats.llamafactory.names import TABLES, extra_modules, trained_layers
from memsheet.exchange.formats.llamafactory.rows import by_deepspeed
from memsheet.exchange.shared.file_format import Moved, Values
from memsheet.exchange.shared.trainers import comma_separated_names, parse_switch

OWN_OPTIMIZERS = ("use_galore", "use_adam_mini", "use_muon", "use_badam", "use_apollo")
WIDENED, AND_EXCHANGED = (4 - 2) + (4 - 2) + (8 - 4), (4 - 2) + 2
"""Bytes an element of a module that trains whole, beside those of the sheet, which has it as it was loaded,
in sixteen bits: itself, its gradient and two moments in fp32; at most a bucket and what autocast keeps of it,
too (model/adapter.py:337-349).
"""
OF_TRAINED = (4 - 2) + 4 + 8 + 4 + 2
"""Bytes of a parameter that trains beside those of a frozen one in sixteen bits, at most: itself, a gradient,
two moments and a bucket in fp32, and what autocast keeps of it.
"""
OF_ADAPTERS = 8 * 40 * 20
"""Bytes of adapters in a layer's linear modules, by its width, at most: of rank 8, in and out of all of them,
each with gradient, moments and bucket.
"""


def _divides_states(values: Values) -> bool:
    """Whether ranks divide what trains."""
    return by_deepspeed(values) or bool(values.get("fsdp"))


def whole_module_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """Modules of ``additional_target`` are raised to fp32 with all else that trains."""
    named = [name for name in comma_separated_names(values.get("additional_target", "")) if name in TABLES]
    own = by_deepspeed(values) or parse_switch(values.get("pure_bf16"))
    if not named or own or values.get("finetuning_type") not in (None, "lora"):
        return
    table, parts = (
        asked["@vocab"] * asked["@hidden"] * len(named),
        asked["@ranks"] if values.get("fsdp") else 1,
    )
    why = f"{', '.join(named)} trained whole in fp32, and the sheet has them in the dtype of the checkpoint"
    more = table * (WIDENED + AND_EXCHANGED)
    yield Moved(at="additional_target", why=why, low_bytes=table * WIDENED // parts, high_bytes=more)


def frozen_layer_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """Layers that train whole beside frozen ones, in whose place the sheet has adapters: their states, less
    those of the adapters.
    """
    layers = trained_layers(values) if values.get("finetuning_type") == "freeze" else None
    if layers is None:
        return
    count, table = asked["@layers"], asked["@vocab"] * asked["@hidden"]
    share = min(layers, count) / count
    extra = table * sum(name in TABLES for name in extra_modules(values))
    parts = str(values.get("freeze_trainable_modules", "all")) != "all"
    least = 0 if parts else int(max(0, asked["@parameters"] - 2 * table) * share)
    most = int(max(0, asked["@parameters"] - table) * share) + extra
    why = f"{min(layers, count)} of {count} layers train whole; the sheet has adapters in the place of those"
    low = _least_bytes(values) * (least + extra) // (asked["@ranks"] if _divides_states(values) else 1)
    low -= OF_ADAPTERS * asked["@hidden"] * count
    yield Moved(at="freeze_trainable_layers", why=why, low_bytes=low, high_bytes=OF_TRAINED * most)


def _least_bytes(values: Values) -> int:
    """Bytes that a parameter which trains has more than a frozen one at every moment: in fp32 in place of
    sixteen bits, and AdamW's moments.
    """
    own = any(parse_switch(values.get(at)) for at in OWN_OPTIMIZERS)
    adam = str(values.get("optim", "adamw_torch")) in ("adamw_torch", "adamw_torch_fused") and not own
    plain = parse_switch(values.get("pure_bf16"))
    return (0 if plain else 4 - 2) + (0 if not adam else 4 if plain else 8)
