"""Encoders of pictures that llama.cpp loads beside a model (``--mmproj``): weights of their own file, and a
buffer for the graph of a batch of pictures.
"""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, maximum
from memsheet.formulas.states.params import tower_tensors
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Attention, Dense, ModelSpec, Tower
from memsheet.references import LLAMA_CPP, formula
from memsheet.sheet import Bytes

BATCH_TOKENS = 1024
"""Tokens of the pictures that are encoded at once, where nobody says (ggml-org/llama.cpp 0c1e5709
tools/mtmd/mtmd.cpp:472)."""
FUSED_WIDTHS = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
"""Heads for which CUDA's kernel makes no matrix of scores, which is taken where it can be
(0c1e5709
ggml/src/ggml-cuda/fattn.cu:577, tools/mtmd/clip.cpp warmup).
"""
ROWS = 8
"""Tensors as wide as a layer that it makes: its input, two norms, queries, keys, values, what attention makes
and its product (0c1e5709 tools/mtmd/clip.cpp:337 build_vit).
"""


def _patches(tower: Tower) -> Count:
    """Patches of a picture, where all have as many; 0 where that depends on the picture."""
    rows = [
        weight.shape[0]
        for weight in tower.embeddings
        if "position" in weight.path and len(weight.shape) > 1 and weight.shape[1] == tower.stack.hidden
    ]
    return reduce(maximum, rows, 0) if tower.tokens_per_image else 0


@formula(
    cites=LLAMA_CPP,
    at=(
        "ggml-org/llama.cpp 0c1e5709 tools/mtmd/clip.cpp: weights as the file has them, at most in fp32; "
        "build_vit, every tensor of a layer in fp32 at once for as many pictures as a batch holds, more than "
        "its graph needs"
    ),
    counts="int",
)
def projector_bytes(model: ModelSpec) -> Bytes | None:
    """Bytes on a device that a model's encoder of pictures takes: from nothing, where it may be left on the
    host, to a bound. None where pictures are of any size.
    """
    weights = sum(weight.elements * times for _, weight, times in tower_tensors(model))
    passing = 0
    for tower in model.towers:
        patches = int(_patches(tower))
        if not patches or not tower.tokens_per_image:
            return None
        pictures = max(1, BATCH_TOKENS // tower.tokens_per_image)
        passing = max(passing, pictures * _layer_bytes(tower, patches))
    return Bytes(0, 0, FP32.nbytes(int(weights)) + passing) if model.towers else None


def _layer_bytes(tower: Tower, patches: int) -> int:
    """Every tensor of the largest layer over a picture, in bytes."""
    found = [0]
    for block in (block for run in tower.stack.runs for block in run.pattern):
        inner = int(block.feed_forward.intermediate) if isinstance(block.feed_forward, Dense) else 0
        scores = sum(
            2 * int(mixer.heads) * patches
            for mixer in block.mixers
            if isinstance(mixer, Attention) and int(mixer.head_dim) not in FUSED_WIDTHS
        )
        found.append(patches * (ROWS * int(block.hidden) + 3 * inner + scores))
    return int(FP32.nbytes(max(found)))
