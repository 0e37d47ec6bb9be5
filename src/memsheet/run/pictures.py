"""A micro-batch with pictures for the families of Qwen2-VL: one picture a sequence, its patches as an image
processor hands them out.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch

from memsheet.errors import input_error
from memsheet.plan.plan import Plan

KINDS = ("qwen2_vl", "qwen2_5_vl")


def picture_rows_and_columns(tokens: int) -> tuple[int, int]:
    """Rows and columns of a picture of so many tokens, as square as they go."""
    rows = next(n for n in range(isqrt(tokens), 0, -1) if tokens % n == 0)
    return rows, tokens // rows


def with_pictures(ids: torch.Tensor, config: Any, plan: Plan) -> dict[str, torch.Tensor]:
    """Arguments of the model's forward: ``image_tokens`` of each sequence stand for its picture (transformers
    5.23, processing_qwen2_5_vl.py; patches are fp32).

    Raises InputError for a model that takes pictures in another way.
    """
    if config.model_type not in KINDS:
        reason = f"of random pictures are not known for {config.model_type}; known for {', '.join(KINDS)}"
        raise input_error("image_tokens", plan.training.image_tokens, reason, "leave it out")
    vision, count = config.vision_config, int(plan.training.image_tokens)
    for special in (config.image_token_id, config.video_token_id):
        ids = ids.masked_fill(ids == special, 0)
    ids[:, :count] = config.image_token_id
    rows, columns = (vision.spatial_merge_size * side for side in picture_rows_and_columns(count))
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    kinds = torch.zeros_like(ids)
    kinds[:, :count] = 1
    grid = torch.tensor([[1, rows, columns]] * len(ids), device=ids.device)
    patches = torch.zeros(len(ids) * rows * columns, values, device=ids.device, dtype=torch.float32)
    return {
        "input_ids": ids,
        "labels": ids.clone(),
        "pixel_values": patches,
        "image_grid_thw": grid,
        "mm_token_type_ids": kinds,
    }
