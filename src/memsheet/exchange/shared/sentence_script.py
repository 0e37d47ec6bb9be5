"""What a script of sentence-transformers loads and trains: a model's states, on rows of several texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.loaded_models import from_pretrained_keys, model_name_key
from memsheet.exchange.shared.python_config import named_calls
from memsheet.exchange.shared.python_module import Module
from memsheet.exchange.shared.script_places import TRAINS_STATES, UNSAID

SENTENCE_TRANSFORMER = "SentenceTransformer"
TEXTS = 2
"""Of a row at the least: an anchor and what it is held against (huggingface/sentence-transformers 0aa54b9
sentence_transformers/losses).
"""
CACHED, PIECE, USUAL_PIECE = ("Cached", "mini_batch_size", 32)
"""Losses that embed a batch piece by piece without a graph, and again with one (0aa54b9
sentence_transformers/losses/CachedMultipleNegativesRankingLoss.py), and how large pieces are.
"""
BATCH, ACCUMULATED = "per_device_train_batch_size", "gradient_accumulation_steps"
USUAL_BATCH = 8


def sentence_keys(module: Module, said: dict[str, Any]) -> dict[str, Any]:
    """The model that a script of sentence-transformers loads; in ``said`` its batch as sequences that a graph
    holds at once: both texts of a row, or a piece of those that are embedded so. Nothing of another script.
    """
    load = next(iter(named_calls(module, (SENTENCE_TRANSFORMER,), local=True)), None)
    if load is None:
        return {}
    rows = said.get(BATCH, USUAL_BATCH)
    piece = _cached_piece(module)
    if isinstance(rows, int) and not isinstance(rows, bool):
        said[BATCH] = rows * TEXTS
        if isinstance(piece, int) and 0 < piece < rows * TEXTS:
            passes = said.get(ACCUMULATED, 1)
            said[BATCH] = piece
            if isinstance(passes, int):
                said[ACCUMULATED] = passes * -(-rows * TEXTS // piece)
    given = load.get("model_kwargs")
    return {
        "dtype": UNSAID,
        **model_name_key(module, load, ("0", "model_name_or_path")),
        **from_pretrained_keys(given if isinstance(given, Mapping) else {}),
        TRAINS_STATES: "pieces" if isinstance(piece, int) else "rows",
    }


def _cached_piece(module: Module) -> Any:
    """How many texts a loss embeds at a time; None where it embeds all of them."""
    called = {path[-1]: module.imported.get(path[-1], path[-1]) for _, path, _ in module.sites}
    classes = {name: whole.rpartition(".")[2] for name, whole in called.items()}
    names = [name for name, of in classes.items() if of.startswith(CACHED) and of.endswith("Loss")]
    made = next(iter(named_calls(module, names, local=True)), None) if names else None
    return made.get(PIECE, made.get("3", USUAL_PIECE)) if made is not None else None
