"""Files in llama.cpp's format, small and without values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN = 64
COMMON = {
    "block_count": 3,
    "context_length": 128,
    "embedding_length": HIDDEN,
    "feed_forward_length": 160,
    "attention.head_count": 4,
}
GROUPED = {**COMMON, "attention.head_count_kv": 2}


def write_gguf(
    path: Path,
    architecture: str,
    keys: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    *,
    quantized: bool = False,
) -> None:
    """A GGUF file with ``shapes`` as torch orders them."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = key if key.startswith("split.") else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif key == "split.count":
            writer.add_uint16(name, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    for name, shape in shapes.items():
        if quantized and len(shape) == 2:
            writer.add_tensor(
                name,
                np.zeros((shape[0], shape[1] // 32 * 18), np.uint8),
                raw_dtype=gguf.GGMLQuantizationType.Q4_0,
            )
        else:
            writer.add_tensor(name, np.zeros(shape, np.float16 if len(shape) == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
