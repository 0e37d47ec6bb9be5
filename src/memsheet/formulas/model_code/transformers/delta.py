"""The gated delta net as the transformers library trains it without optional packages (5.23, modeling_qwen3_next.py:339-860): a short
convolution over queries, keys and values, the delta rule by chunks in plain operations of torch, a norm with a gate. Written over
shape-only tensors.

Axes besides those of ``blocks.py``: ``u`` heads of keys, ``H`` of values, ``g`` of values for each of keys, of ``p`` and ``w`` elements; ``K``
the convolution's channels, ``P`` the joint projection's width. A sequence is ``m`` chunks of ``Q`` positions, ``N`` in all; ``delta_chunks.py``
goes through them.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, maximum
from memsheet.formulas.model_code.transformers.delta_chunks import FULL, PADDED, Chunked, chunk_rule, chunks_of
from memsheet.formulas.model_code.transformers.scratch_norms import reciprocal_root, row_mean, row_sum
from memsheet.formulas.numerics import Numerics, project
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.references import TRANSFORMERS, formula
from memsheet.spec.dtypes import FP32
from memsheet.spec.model import LinearAttention

KIND = "gated_delta_net"
CHUNK = 64
"""Positions that are solved at once (torch_chunk_gated_delta_rule, modeling_qwen3_next.py:380)."""
CHANNELS: Shape = ("b", "K", "s")
VALUES: Shape = ("b", "s", "H", "w")
HEADS: Shape = ("b", "s", "H")
"""One number a head of values and position."""
OUT: Shape = ("b", "H", "N", "w")
