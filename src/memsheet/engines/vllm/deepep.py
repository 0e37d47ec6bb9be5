"""Buffers of DeepEP as vLLM makes them: of a fixed size."""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, minimum
from memsheet.formulas.serving.deepep import NODE
from memsheet.references import DEEPEP_BUFFERS, formula
from memsheet.units import MIB

FIXED_BYTES = 1024 * MIB
"""The size of each buffer (v0.33.0 envs.py:291)."""


@formula(
    cites=DEEPEP_BUFFERS,
    at="vLLM v0.33.0 distributed/device_communicators/all2all.py:263: one for a node, one over the network",
)
def fixed_buffer_bytes(_hidden: int, _experts: int, ranks: Count) -> Count:
    """Bytes of a rank's buffers, whatever the model."""
    return FIXED_BYTES * minimum(2, ceil_div(ranks, NODE))
