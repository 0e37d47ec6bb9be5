"""What vLLM's profiling run keeps of the pictures it showed to a tower, under the run of the language model
that follows.
"""

from __future__ import annotations

from functools import reduce
from math import prod

from memsheet.arith import Count, at_least, ceil_div, given_or, maximum, minimum, where
from memsheet.engines.vllm.releases import ProfiledPictures, Release
from memsheet.formulas.serving.widest_layer import (
    MERGED_PATCHES,
    block_bytes,
    layer_vector_bytes,
    pictures_bytes,
)
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec, Picture, Role, Tower
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes, Cited, Component, Instant, Item

COPIED = (ProfiledPictures.BATCH, ProfiledPictures.PICTURE)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 gpu_model_runner.py:3354, 3387: names that live to the end of profile_run, and the cache "
        "of the tower's outputs"
    ),
)
def kept_pictures(part: ModelSpec, plan: Plan, release: Release) -> Bytes:
    """Bytes on a rank of a stage that has towers: pictures, what became of them, and copies of that, until
    the run ends.
    """
    if release.shown is ProfiledPictures.NONE:
        return NOTHING
    return (
        reduce(_larger_range, (_of_tower(tower, part, plan, release) for tower in part.towers))
        if part.towers
        else NOTHING
    )


def _larger_range(left: Bytes, right: Bytes) -> Bytes:
    """Of several towers the one whose items are longest is shown something (v0.33.0
    multimodal/encoder_budget.py:184 get_modality_with_max_tokens).
    """
    return Bytes(
        maximum(left.low, right.low), maximum(left.value, right.value), maximum(left.high, right.high)
    )


def _of_tower(tower: Tower, part: ModelSpec, plan: Plan, release: Release) -> Bytes:
    if tower.largest is None:
        longest = longest_item(tower, part, plan, release)
        if longest is None:
            return unsized_bytes(tower, part.hidden, plan)
        size = _encoder_output_bytes(longest, shown_pictures(plan, longest.embeddings), part, plan, release)
        return Bytes(0, size, size)
    fewest = shown_pictures(plan, tower.largest.places, more=release.shown is ProfiledPictures.MORE)
    most = shown_pictures(plan, tower.largest.embeddings, more=release.shown is ProfiledPictures.MORE)
    low, high = (
        _encoder_output_bytes(tower.largest, number, part, plan, release) for number in (fewest, most)
    )
    return Bytes(
        low, low if release.shown in COPIED else high, high
    )  # releases that copy count places, others what is embedded


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/worker/utils.py:78 get_max_items and v1/core/encoder_cache_manager.py: a batch's worth "
        "of pictures, or one"
    ),
)
def shown_pictures(plan: Plan, tokens: Count, *, more: bool = False) -> Count:
    """Pictures of so many ``tokens`` that are shown at once. ``more``: one that a batch has no room for is
    counted with it.
    """
    assert plan.serving.max_batched_tokens is not None
    assert plan.serving.max_sequences is not None
    budget = maximum(plan.serving.max_batched_tokens, tokens)
    fitting = ceil_div(budget, tokens) if more else budget // tokens
    each = 1 if more else maximum(1, given_or(plan.serving.max_model_len, 0) // tokens)
    return maximum(1, minimum(fitting, plan.serving.max_sequences * each))


def _encoder_output_bytes(
    picture: Picture, number: Count, part: ModelSpec, plan: Plan, release: Release
) -> Count:
    """A runner that counts every request's tokens lets go of the pictures themselves (v0.33.0
    v1/worker/gpu/mm/encoder_runner.py:139).
    """
    seen = 0 if release.sampler_of(part.model_type).counts else picture.pixels
    wide = part.hidden * (1 + max(tower.deepstack for tower in part.towers))
    elements = number * (picture.embeddings * wide + seen)
    return plan.precision.compute.nbytes(
        elements + number * part.hidden * copied_rows(picture, plan, release.shown)
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 gpu_model_runner.py:3374 a copy of each as long as the encoder's budget; v0.12.0:4340 as "
        "its places"
    ),
)
def copied_rows(picture: Picture, plan: Plan, shown: ProfiledPictures) -> Count:
    """Rows of the copy of a picture, beside which what was copied stays: a name in the function still looks
    at it.
    """
    if shown not in COPIED:
        return 0
    rows = (
        maximum(given_or(plan.serving.max_batched_tokens, 0), picture.places)
        if shown is ProfiledPictures.BATCH
        else picture.places
    )
    return where(at_least(rows, picture.embeddings + 1), rows, 0)


RESIZED, PAIRS, ALL_PAIRS, PICTURES_SINCE = 16384, 7, 12288, (0, 20)
"""Tokens of the largest picture that the released processors of Qwen's models make (12,845,056 pixels in
squares of 28, 16,777,216 in squares of 32: preprocessor_config.json, max_pixels and size.longest_edge); pairs
of frames of the longest video, each as large (v0.11.0 and v0.33.0 model_executor/models/qwen2_vl.py,
_MAX_FRAMES_PER_VIDEO; v0.14.0 qwen3_vl.py:132, the same of newer ones); since when no video of those is
longer than a picture (v0.20.2 qwen3_vl.py, get_max_video_tokens).
"""
VIDEOS, PICTURES = (
    frozenset({"qwen2_vl", "qwen2_5_vl", "qwen2_5_omni"}),
    frozenset({"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}),
)
"""Types of which a video is the longest item whatever the release, and those of which it was."""


def longest_item(tower: Tower, part: ModelSpec, plan: Plan, release: Release) -> Picture | None:
    """The longest picture or video that a tower is shown where its processor says; None of other towers. A
    video has as many pairs of frames as a sequence has room for (v0.33.0 models/qwen2_vl.py:1141).
    """
    if "audio" in tower.path or part.model_type not in VIDEOS | PICTURES:
        return None
    pictures = part.model_type in PICTURES and release.since >= PICTURES_SINCE
    most = 1 if pictures else PAIRS if part.model_type in VIDEOS else ALL_PAIRS
    pairs = maximum(1, minimum(most, given_or(plan.serving.max_model_len, RESIZED) // RESIZED))
    tokens = RESIZED * pairs
    return Picture(embeddings=tokens, places=tokens, pixels=tokens * MERGED_PATCHES * _patch_elements(tower))


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/worker/gpu/model_runner.py:1022: the longest item, as often as a batch has room, at once",
)
def tower_run_bytes(part: ModelSpec, plan: Plan, release: Release) -> Bytes:
    """The widest layer of a tower over what the profiling run shows it; nothing where no processor says.
    Those that are known attend by the lengths of what lies in a row, without a mask.
    """
    found = NOTHING
    for tower in part.towers:
        longest = longest_item(tower, part, plan, release) if tower.largest is None else None
        if longest is None:
            continue
        tokens = longest.embeddings * shown_pictures(plan, longest.embeddings)
        blocks = dict.fromkeys(block for run in tower.stack.runs for block in run.pattern)
        sizes = [size for block in blocks for size in block_bytes(block, plan, MERGED_PATCHES * tokens)]
        value = reduce(maximum, (size.value for size in sizes), 0)
        alone = replace(part, towers=(tower,))
        most = maximum(value, pictures_bytes(alone, plan, tokens, masks=False))
        found = Bytes.max(found, Bytes(0, value, most))
    return found


def without_known_towers(part: ModelSpec, plan: Plan, release: Release) -> ModelSpec:
    """The model with those towers alone of which no processor says what they are shown."""
    left = (tower for tower in part.towers if tower.largest or not longest_item(tower, part, plan, release))
    return replace(part, towers=tuple(left))


def _patch_elements(tower: Tower) -> Count:
    """Numbers of a patch, of all its channels and frames."""
    return reduce(
        maximum,
        (prod(w.shape[1:]) for w in tower.embeddings if "patch" in w.path and w.role is Role.LINEAR),
        0,
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/worker/utils.py:88: pictures of any size that fill a batch; high: one as long as a "
        "sequence; v0.33.0 models/qwen3_vl.py:606: as wide again for each layer of deepstack"
    ),
)
def unsized_bytes(tower: Tower, hidden: int, plan: Plan) -> Bytes:
    """Bytes of pictures whose largest no config says: their patches, and what a language model is given of
    them.
    """
    assert plan.serving.max_batched_tokens is not None
    patch = _patch_elements(tower)
    value, high = (
        plan.precision.compute.nbytes(rows * (hidden * (1 + tower.deepstack) + MERGED_PATCHES * patch))
        for rows in (
            plan.serving.max_batched_tokens,
            maximum(plan.serving.max_batched_tokens, given_or(plan.serving.max_model_len, 0)),
        )
    )
    return Bytes(0, value, high)


def layer_embedding_items(part: ModelSpec, plan: Plan, release: Release) -> list[Item]:
    """A buffer of a batch's vectors for all layers, in models that see or hear; nothing for others."""
    assert plan.serving.max_batched_tokens is not None
    rows = plan.serving.max_batched_tokens if release.since >= LAYER_BUFFER_SINCE else 0
    size = layer_vector_bytes(part, plan, rows)
    source = Cited(PAGED_SERVER_CODE, "v0.33.0 model_executor/models/gemma3n_mm.py:638, gemma4_mm.py:1157")
    at = dict.fromkeys((Instant.LOAD, Instant.PREFILL, Instant.DECODE), Bytes.exact(size))
    return [Item(Component.BUFFERS, "per_layer_embeddings", at, source)] if part.towers and size else []


LAYER_BUFFER_SINCE = (0, 10)
"""v0.10.1 model_executor/models/gemma3n_mm.py; v0.10.0 has the text model alone."""


def deepstack_items(part: ModelSpec, plan: Plan) -> list[Item]:
    """Buffers in which a batch's pictures wait for the decoder's first layers; nothing for other models."""
    size = deepstack_bytes(part, plan)
    source = Cited(PAGED_SERVER_CODE, "v0.33.0 model_executor/models/qwen3_vl.py:2031, v0.11.0 :1143")
    at = dict.fromkeys((Instant.LOAD, Instant.PREFILL, Instant.DECODE), Bytes.exact(size))
    return [Item(Component.BUFFERS, "deepstack_input_embeds", at, source)] if part.towers and size else []


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 models/qwen3_vl.py:2031: a row a scheduled token for each layer of the tower that hands over",
)
def deepstack_bytes(part: ModelSpec, plan: Plan) -> Count:
    """Bytes of those buffers on a rank."""
    assert plan.serving.max_batched_tokens is not None
    levels = sum(tower.deepstack for tower in part.towers)
    return plan.precision.compute.nbytes(levels * plan.serving.max_batched_tokens * part.hidden)
