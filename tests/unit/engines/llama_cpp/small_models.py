"""The compute buffer of small models as llama.cpp 0c1e5709 reserves it on a processor, in whose graph tokens
and embeddings are not mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.engines.llama_cpp.build import Reserved
from memsheet.engines.llama_cpp.ggml_devices import compute_buffers
from memsheet.engines.llama_cpp.graph import reserved_graph
from memsheet.readers.hf_config import read_hf_config
from memsheet.units import MIB


def compute_mib(config: Mapping[str, Any], *, cells: int, ubatch: int, flash: bool, sequences: int) -> float:
    """``cells``: of all sequences; ``ubatch``: tokens of a batch."""
    spec = read_hf_config(config, name="small")
    how = Reserved(
        ubatch=ubatch,
        cells=cells // sequences,
        window_cells=min(cells // sequences, -(-(512 + ubatch) // 256) * 256),
        flash=flash,
        layer_devices=(0,) * spec.layers,
        output_device=0,
        host=0,
        fused=False,
        half_mask=True,
        outputs=sequences,
        sequences=sequences,
        kept_states=sequences,
        mixed_inputs=False,
    )
    return compute_buffers(reserved_graph(spec, how, {}), 1)[0] / MIB
