"""Models: configurations of many layers, headers of many tensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from craft import LLAMA, gguf, gguf_llama, info, safetensors, text

from amplifiers import ANSWERED, Amplifier

ASK = ("--gpus", "8xH100-80GB")
TRAIN = (*ASK, "--seq-len", "512")


def layers(count: int, *words: str, **more: object) -> Amplifier:
    config = {**LLAMA, "num_hidden_layers": count, **more}
    return Amplifier(
        files=lambda: {"config.json": json.dumps(config).encode()},
        command=("train", "config.json", *TRAIN, *words),
        codes=ANSWERED,
    )


def served(count: int, engine: str, **more: object) -> Amplifier:
    config = {**LLAMA, "num_hidden_layers": count, **more}
    command = ("infer", "config.json", "--gpus", "1xH100-80GB", "--engine", engine, "--max-model-len", "128")
    return Amplifier(
        files=lambda: {"config.json": json.dumps(config).encode()}, command=command, codes=ANSWERED
    )


def stored(name: str, header: Callable[[], bytes]) -> Amplifier:
    return Amplifier(
        files=lambda: {"config.json": json.dumps(LLAMA).encode(), name: header()},
        command=("infer", name, "--gpus", "1xH100-80GB", "--max-model-len", "128"),
        codes=ANSWERED,
    )


def entries(count: int, name: str = "t") -> bytes:
    rows = (
        b'"%s%d":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]}' % (name.encode(), n, n, n + 1)
        for n in range(count)
    )
    return b"{" + b",".join(rows) + b"}"


def headed(header: Callable[[], bytes], data: int = 0) -> Amplifier:
    return stored("model.safetensors", lambda: safetensors(header(), data))


def texts(count: int) -> bytes:
    return struct.pack("<IQ", 8, count) + struct.pack("<Q", 0) * count


MIXED = ["full_attention", "sliding_attention"]
EXPERTS = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
MEMBERS: dict[str, Amplifier] = {
    "10,000 layers": layers(10_000),
    "10,000 layers under fsdp2": layers(10_000, "--engine", "fsdp2", "--zero", "3"),
    "10,000 layers under fsdp2, recomputed": layers(10_000, "--engine", "fsdp2", "--zero", "3", "--recompute", "full"),
    "10,000 layers under deepspeed": layers(10_000, "--engine", "deepspeed", "--zero", "3", "--precision", "bf16-master"),
    "10,000 layers under megatron": layers(10_000, "--engine", "megatron", "--precision", "bf16-master"),
    "10,000 layers in stages": layers(10_000, "--engine", "megatron", "--pp", "8", "--precision", "bf16-master"),
    "10,000 layers with experts": layers(10_000, "--engine", "fsdp2", "--zero", "3", **EXPERTS),
    "10,000 layers with adapters": layers(10_000, "--lora-rank", "8"),
    "10,000 layers of two kinds": layers(10_000, "--engine", "fsdp2", "--zero", "3", model_type="gemma3_text", layer_types=MIXED * 5_000, sliding_window=64, head_dim=16),
    "1,000 layers under fsdp2": layers(1_000, "--engine", "fsdp2", "--zero", "3"),
    "10,000 layers under vllm": served(10_000, "vllm"),
    "10,000 layers under sglang": served(10_000, "sglang"),
    "10,000 layers under llama.cpp": served(10_000, "llama.cpp"),
    "10,000 layers of two kinds under vllm": served(10_000, "vllm", model_type="gemma3_text", layer_types=MIXED * 5_000, sliding_window=64, head_dim=16),
    "a header of 57 MB": headed(lambda: entries(1_000_000), 1_000_000),
    "a header of 77 MB of empty lists": headed(lambda: b'{"a":[' + b"[]," * 25_000_000 + b"[]]}"),
    "a header of 24 MB of empty objects": headed(lambda: b'{"a":[' + b"{}," * 8_000_000 + b"{}]}"),
    "a header of 24 MB of keys": headed(lambda: b"{" + b",".join(b'"%d":0' % n for n in range(2_300_000)) + b"}"),
    "a header of 24 MB of numbers": headed(lambda: b'{"a":[' + b"1," * 12_000_000 + b"1]}"),
    "a header of 24 MB of entries": headed(lambda: entries(400_000), 400_000),
    "a header of 24 MB of text": headed(lambda: b'{"__metadata__":{"a":"' + b"x" * 24_000_000 + b'"}}'),
    "a header of 24 MB of escapes": headed(lambda: b'{"__metadata__":{"a":"' + b"\\u0041" * 4_000_000 + b'"}}'),
    "an index of 24 MB": stored(
        "model.safetensors.index.json", lambda: json.dumps({"weight_map": {f"t{n}": f"m{n % 9000}.safetensors" for n in range(600_000)}}).encode()
    ),
    "a GGUF of a million tensors": Amplifier(
        files=lambda: {"a.gguf": gguf([text("general.architecture", "llama")], [info(f"t{n}", (1,), 24, 32 * n) for n in range(300_000)], 32 * 300_000)},
        command=("infer", "a.gguf", "--gpus", "1xH100-80GB", "--max-model-len", "128"), codes=ANSWERED,
    ),
    "a GGUF of a million texts": Amplifier(
        files=lambda: {"a.gguf": gguf_llama(struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + texts(4_000_000))},
        command=("infer", "a.gguf", "--gpus", "1xH100-80GB", "--max-model-len", "128"), codes=ANSWERED,
    ),
    "a GGUF of texts and many keys": Amplifier(
        files=lambda: {"a.gguf": gguf_llama(*(struct.pack("<Q", 6) + b"k%05d" % n + struct.pack("<I", 8) + struct.pack("<Q", 500) + b"x" * 500 for n in range(60_000)))},
        command=("infer", "a.gguf", "--gpus", "1xH100-80GB", "--max-model-len", "128"), codes=ANSWERED,
    ),
}  # fmt: skip
