"""A bare encoder's training: its states are pooled to one embedding a sequence, and a sequence is told from
the others of the micro-batch by its partner's.

What sentence-transformers trains with by default: the mean over tokens under their mask
(huggingface/sentence-transformers 0aa54b9, sentence_transformers/models/Pooling.py), and cross entropy over
the cosines of all pairs, twenty times (023acff, losses/MultipleNegativesRankingLoss.py). There each side of a
pair is a forward of its own, both of which wait for backward; here the micro-batch's sequences are both sides
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SCALE = 20.0  # of cosines


def has_no_loss(model: nn.Module) -> bool:
    """Whether a model of text ends with its states: the class that has no head, of a family that is trained
    on masked words or on the next one.
    """
    from transformers.models.auto import modeling_auto

    config: Any = model.config
    kind = config.model_type
    named = modeling_auto.MODEL_MAPPING_NAMES.get(kind, ())
    bare = type(model).__name__ in ((named,) if isinstance(named, str) else named)
    of_words = (
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )
    return bare and any(kind in names for names in of_words)


def apply_pooled_loss(model: nn.Module) -> None:
    """Replace a bare model's forward by pooled embeddings and their loss."""
    found: Any = model
    found.forward = partial(_pooled_forward, found.forward)


def _pooled_forward(forward: Callable[..., Any], *, input_ids: Tensor, labels: Tensor) -> Any:
    from transformers.modeling_outputs import CausalLMOutput

    del labels  # which sequence belongs to which is all there is to know
    states = forward(input_ids=input_ids).last_hidden_state  # which drops a mask that leaves nothing out
    mask = torch.ones_like(input_ids)
    weights = mask.unsqueeze(-1).expand(states.shape).to(states.dtype)
    embeddings = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return CausalLMOutput(loss=_pair_loss(embeddings))


def _pair_loss(embeddings: Tensor) -> Tensor:
    """Cross entropy over all partners; one sequence alone is its own."""
    unit = functional.normalize(embeddings, dim=1)
    several = unit.shape[0] > 1
    anchors, others = unit.chunk(2) if several else (unit, unit)
    scores = anchors @ others.T * SCALE
    return functional.cross_entropy(scores, torch.arange(scores.shape[0], device=scores.device))
