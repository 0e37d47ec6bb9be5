"""What a model's forward cannot do without beside words: one standard picture a sequence, of the size that
its config says, as the model's own processor shapes it.

Models that run on words alone are given words alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Tensor]
QUESTION_TOKENS = 32
"""Words that a query former is given beside a picture (InstructBLIP's prompts are one short sentence)."""
DESCRIPTION_TOKENS = 32  # a sentence, likewise
FRAMES = 4
"""Pictures of a clip (transformers 5.23, modeling_instructblipvideo.py:941, "video has frames=4 always")."""
PATCHES = 2048
"""Of a page (transformers 5.23, image_processing_pix2struct.py:156)."""
BOX = 4  # left, top, right, bottom
RESIDUES = 1024
"""Of a protein at most (transformers 5.23, processing_evolla.py:28)."""


def with_standard_inputs(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    """A micro-batch of words with what its model takes besides, or in their stead."""
    known = STANDARD.get(config.model_type)
    return batch if known is None else known[0](batch, config, dtype)


def standard_input_words(config: Any) -> str:
    """What a model is given beside words, in words; empty where nothing is."""
    known = STANDARD.get(config.model_type)
    if known is None and config.is_encoder_decoder and getattr(config, "num_mel_bins", None):
        return f"a sound of {2 * config.max_source_positions:,} frames a sequence"  # as run.step gives it
    if known is None:
        return ""
    side = _side(config)
    return known[1] + (f" of {side} × {side} points" if side and "picture" in known[1] else "")


def _side(config: Any) -> int:
    found = [
        getattr(part, "image_size", None)
        for part in (config, *(getattr(config, name, None) for name in ("vision_config", "encoder")))
    ]
    return next((side for side in found if isinstance(side, int)), 0)


def _pictures(batch: Batch, config: Any, dtype: torch.dtype, *frames: int) -> Tensor:
    some = next(iter(batch.values()))
    side = _side(config)
    return torch.zeros(len(some), *frames, 3, side, side, dtype=dtype, device=some.device)


def _with_picture(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    return {**batch, "pixel_values": _pictures(batch, config, dtype)}


def _with_picture_and_question(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    return {**_with_picture(batch, config, dtype), "qformer_input_ids": _question(batch)}


def _with_clip_and_question(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    clip = _pictures(batch, config, dtype, FRAMES)
    return {**batch, "pixel_values": clip, "qformer_input_ids": _question(batch)}


def _question(batch: Batch) -> Tensor:
    return torch.zeros_like(batch["input_ids"][:, :QUESTION_TOKENS])


def _with_one_of_pictures(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    """Idefics: pictures of a sequence, and which of them each word sees."""
    ids = batch["input_ids"]
    seen = torch.ones(*ids.shape, 1, dtype=torch.int64, device=ids.device)
    return {**batch, "pixel_values": _pictures(batch, config, dtype, 1), "image_attention_mask": seen}


def _with_marked_picture(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    """Kosmos-2: which places of a sequence are the picture's, its first ones."""
    places = torch.zeros_like(batch["input_ids"])
    places[:, : config.latent_query_num] = 1
    return {**_with_picture(batch, config, dtype), "image_embeds_position_mask": places}


def _with_tiled_picture(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    """Mllama: a picture padded to as many tiles as there may be, and which of them each word sees
    (transformers 5.23, image_processing_mllama.py:242-290, processing_mllama.py:222).
    """
    ids, tiles = batch["input_ids"], config.vision_config.max_num_tiles
    pictures = _pictures(batch, config, dtype, 1, tiles)
    ones = partial(torch.ones, dtype=torch.int64, device=ids.device)
    return {
        **batch,
        "pixel_values": pictures,
        "aspect_ratio_ids": ones(len(ids), 1),
        "aspect_ratio_mask": ones(len(ids), 1, tiles),
        "cross_attention_mask": ones(*ids.shape, 1, tiles),
    }


def _with_protein(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    """Evolla: what a sequence is about, as residues."""
    del config, dtype
    ids = batch["input_ids"]
    shape = (len(ids), RESIDUES)
    return {
        **batch,
        "protein_input_ids": torch.zeros(shape, dtype=torch.int64, device=ids.device),
        "protein_attention_mask": torch.ones(shape, dtype=torch.int64, device=ids.device),
    }


def _picture_for_words(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    return {"pixel_values": _pictures(batch, config, dtype), "labels": batch["labels"]}


def _patches_for_words(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    """Pix2Struct: patches with their row and column (image_processing_pix2struct.py)."""
    vision, labels = config.vision_config, batch["labels"]
    width = vision.patch_embed_hidden_size + 2
    patches = torch.ones(len(labels), PATCHES, width, dtype=dtype, device=labels.device)
    return {"flattened_patches": patches, "labels": labels}


def _sounds_of_words(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    """Musicgen: a description, and what is learned of it as tokens of every codebook (transformers 5.23,
    modeling_musicgen.py:100-110, 660-745).
    """
    del dtype
    ids, books = batch["labels"], config.decoder.num_codebooks
    labels = ids.unsqueeze(-1).repeat(1, 1, books) % config.decoder.vocab_size
    return {
        "input_ids": ids[:, :DESCRIPTION_TOKENS] % config.text_encoder.vocab_size,
        "labels": labels,
        "decoder_input_ids": labels.transpose(1, 2).reshape(-1, ids.shape[1]),
    }


def _with_boxes(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    del config
    ids = batch["input_ids"]
    return {**batch, "bbox": torch.zeros(*ids.shape, BOX, dtype=dtype, device=ids.device)}


def _with_kinds_of_tokens(batch: Batch, config: Any, dtype: torch.dtype) -> Batch:
    del config, dtype
    return {**batch, "mm_token_type_ids": torch.zeros_like(batch["input_ids"])}


_PICTURE = "one picture a sequence"
_SOUNDS = f"tokens of every codebook, and a description of {DESCRIPTION_TOKENS} words"
STANDARD: Mapping[str, tuple[Callable[[Batch, Any, torch.dtype], Batch], str]] = {
    "blip": (_with_picture, _PICTURE),
    "blip-2": (_with_picture, _PICTURE),
    "evolla": (_with_protein, f"a protein of {RESIDUES} residues a sequence"),
    "git": (_with_picture, _PICTURE),
    "idefics": (_with_one_of_pictures, _PICTURE),
    "instructblip": (_with_picture_and_question, _PICTURE),
    "instructblipvideo": (_with_clip_and_question, f"a clip of {FRAMES} pictures a sequence"),
    "kosmos-2": (_with_marked_picture, _PICTURE),
    "mllama": (_with_tiled_picture, _PICTURE),
    "molmo2": (_with_kinds_of_tokens, ""),
    "musicgen": (_sounds_of_words, _SOUNDS),
    "musicgen_melody": (_sounds_of_words, _SOUNDS),
    "pix2struct": (_patches_for_words, f"one page of {PATCHES} patches a sequence"),
    "pp_formulanet": (_with_picture, _PICTURE),
    "udop": (_with_boxes, "a box for each word"),
    "vision-encoder-decoder": (_picture_for_words, _PICTURE),
}
"""model_type → what is added, and how it is called."""
