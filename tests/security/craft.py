"""Files made byte by byte, so that each can lie in exactly one place."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 128,
}  # fmt: skip


def config(**changes: Any) -> bytes:
    """A small Llama's config.json with some keys changed."""
    return json.dumps({**LLAMA, **changes}).encode()


def raw_config(text: str) -> bytes:
    """The same with JSON text put in as it is."""
    return (json.dumps(LLAMA)[:-1] + ", " + text + "}").encode()


def entry(
    dtype: str = "F32", shape: Sequence[Any] = (2, 2), offsets: Sequence[Any] = (0, 16), **more: Any
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def safetensors(header: object, data: int = 16, *, length: int | None = None) -> bytes:
    """``header`` as JSON (or as the bytes given), ``data`` zero bytes after it; ``length`` is what the file
    claims of it.
    """
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def u32(name: str, value: int) -> bytes:
    return key(name, 4, struct.pack("<I", value))


def text(name: str, value: str | bytes) -> bytes:
    return key(name, 8, string(value))


def array(kind: int, length: int, body: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + body


def info(name: str | bytes, dims: Sequence[int] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", kind, offset)


def gguf(
    keys: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: int = 0,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file; the counts are what it claims, ``alignment`` only pads."""
    tensors, claimed = (
        len(infos) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    head = magic + struct.pack("<IQQ", version, tensors, claimed) + b"".join(keys) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + bytes(data)


def gguf_llama(*more: bytes, **changes: int) -> bytes:
    """A GGUF file with a small Llama's keys and its embedding, the keys in ``more`` besides."""
    sizes = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
    }
    keys = [
        text("general.architecture", "llama"),
        *(u32(f"llama.{name}", size) for name, size in {**sizes, **changes}.items()),
        *more,
    ]
    blocks = [info(f"blk.{i}.attn_norm.weight", (64,), 0, 24576 + 256 * i) for i in range(2)]
    return gguf(keys, [info("token_embd.weight", (64, 96)), *blocks], 24576 + 512)
