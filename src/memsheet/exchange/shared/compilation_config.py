"""vLLM's object of how it compiles and what it records as CUDA graphs, part by part (v0.33.0
config/compilation.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values
from memsheet.exchange.shared.graph_sizes import largest_of_sizes

CONFIG = "--compilation-config"
LARGEST, SIZES, MODE = (
    "--max-cudagraph-capture-size",
    "--cudagraph-capture-sizes",
    f"{CONFIG}.cudagraph_mode",
)
EAGER, MOST_TEXT = "--enforce-eager", 1 << 16
COMPILED = (3, "VLLM_COMPILE")
"""How a model is compiled where nobody says (CompilationMode; ``level`` in older releases)."""
SUBSETS = ("FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY")
"""What is recorded where nobody says, and parts of it, of which the range has the least."""
KNOWN = frozenset(
    f"{CONFIG}.{name}"
    for name in (
        "cudagraph_num_of_warmups", "debug_dump_path", "cache_dir", "compile_cache_save_format", "inductor_compile_config", "compile_sizes",
        "use_inductor", "backend", "custom_ops", "traced_files", "compilation_time", "local_cache_dir",
    )
)  # fmt: skip
"""Parts that change no byte: which kernels are made, and where they are kept."""
UNMODELLED: dict[str, tuple[Any, ...]] = {
    CONFIG: COMPILED, f"{CONFIG}.mode": COMPILED, f"{CONFIG}.level": COMPILED, MODE: SUBSETS,
    **dict.fromkeys((f"{CONFIG}.{name}" for name in ("pass_config", "splitting_ops", "cudagraph_specialize_lora", "use_cudagraph", "full_cuda_graph",
                                                     "cudagraph_copy_inputs", "cudagraph_mm_encoder", "compile_mm_encoder", "dynamic_shapes_config")), ()),
}  # fmt: skip
_SAME = {f"{CONFIG}.max_cudagraph_capture_size": LARGEST, f"{CONFIG}.cudagraph_capture_sizes": SIZES}


def expand_compilation_config(values: Values) -> Mapping[str, Any]:
    """A command's values with the object's parts as places; what is no object stays as it is. Sizes are
    where the flags of their own have them, and no graphs at all are what that flag has.
    """
    parts = _object_of(values.get(CONFIG))
    rest = {at: held for at, held in values.items() if at != CONFIG or parts is None}
    named = {
        f"{CONFIG}.{name}": json.dumps(held) if isinstance(held, dict) else held
        for name, held in (parts or {}).items()
        if held is not None
    }
    found = {_SAME.get(at, at): held for at, held in {**rest, **named}.items()}
    none = str(found.get(MODE, "")).upper() == "NONE"
    return {at: held for at, held in found.items() if at != MODE} | {EAGER: True} if none else found


def _object_of(text: Any) -> Mapping[str, Any] | None:
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        return None
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return held if isinstance(held, dict) else None


KEYS = (
    Key(at=LARGEST, says="serving.graph_sequences", source="engine/arg_utils.py, max_cudagraph_capture_size"),
    Key(at=SIZES, out=lambda _: None, back=largest_of_sizes(LARGEST), source="config/vllm.py:2560"),
)
