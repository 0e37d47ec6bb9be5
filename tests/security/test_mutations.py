"""Right files with wrong bytes in them: whatever comes of it, it is an InputError or an answer the format's
own library shares.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
from craft import LLAMA, array, entry, gguf_llama, key, string, text, u32
from craft import safetensors as write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from memsheet.allocator.recorded import compare_with_replay
from memsheet.errors import InputError
from memsheet.guard import parse_json, parse_yaml
from memsheet.guard.toml import parse_toml
from memsheet.plan.device import MAX_DEVICES
from memsheet.readers.cluster_file import cluster_from
from memsheet.readers.gguf import read_header as read_gguf
from memsheet.readers.gguf_model import model_from_gguf
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.record import read_record
from memsheet.readers.safetensors import read_header as read_safetensors
from memsheet.readers.sheet_json import read_sheets
from memsheet.readers.snapshot import read_snapshot

SAFE = write_safetensors(
    {
        "__metadata__": {"format": "pt"},
        "a": entry(),
        "b": entry("BF16", (3,), (16, 22)),
        "c": entry("U8", (0,), (22, 22)),
    },
    22,
)
GGUF = gguf_llama(
    text("general.name", "x"),
    key("tokenizer.ggml.tokens", 9, array(8, 3, string("a") * 3)),
    u32("llama.attention.head_count_kv", 2),
)
JSON = json.dumps(
    {**LLAMA, "rope_scaling": {"factor": 8.0, "list": [1, None, True]}, "torch_dtype": "bfloat16"}
).encode()
TOML = (
    b'device = "H100-80GB"\nnodes = 8\nper_node = 4\nhost_memory = "2TiB"\n[links]\nscale_out = "100 '
    b'Gbit/s"\nhost_gb_s = 31.5\n'
)
YAML = b"a: 1\nb:\n  - 2.5\n  - {c: 'x', d: [yes, ~]}\ne: |\n  text\n"
STRUCTURE = (
    b"[",
    b"{",
    b'"',
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 30,
    b"\xff",
    b"\0",
    b"\xff" * 8,
    b"\x80" + b"\0" * 7,
    b"&a ",
    b"*a",
    b"!!x ",
    b"\n",
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, head: int) -> bytes:
    """``whole`` with a few bytes of its first ``head`` changed, put in, taken out, or the end cut off."""
    raw = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(head, len(raw))))
        match draw(st.integers(0, 4)):
            case 0:
                raw[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                raw[at:at] = draw(st.sampled_from(STRUCTURE))
            case 2:
                del raw[at : at + draw(st.integers(1, 8))]
            case 3:
                piece = draw(st.sampled_from(STRUCTURE))
                raw[at : at + len(piece)] = piece
            case _:
                del raw[at:]
    return bytes(raw)


def outcome(read: Callable[[Any], Any], source: Any) -> Any:
    """What ``read`` gives, or None where it refuses; any other error fails the test."""
    try:
        return read(source)
    except InputError as error:
        refused = error
    assert refused.problems
    assert all(line.isprintable() for line in str(refused).split("\n"))
    return None


def from_file(read: Callable[[Path], Any], raw: bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(raw)
        return outcome(read, path)


@settings(max_examples=300, deadline=None)
@given(damaged(SAFE, 240))
def test_safetensors(raw: bytes):
    header = from_file(read_safetensors, raw)
    if header is not None:
        theirs = {name: len(tensor["data"]) for name, tensor in safetensors.deserialize(raw)}
        assert {t.name: t.nbytes for t in header.tensors} == theirs


@settings(max_examples=300, deadline=None)
@given(damaged(GGUF, 600))
def test_gguf(raw: bytes):
    header = from_file(read_gguf, raw)
    if header is not None:
        assert all(t.offset + t.nbytes <= header.file_bytes for t in header.tensors if t.nbytes)
    from_file(model_from_gguf, raw)


@settings(max_examples=300, deadline=None)
@given(damaged(JSON, len(JSON)))
def test_json(raw: bytes):
    found = outcome(lambda data: parse_json(data, "config"), raw)
    if found is not None:
        assert found == json.loads(raw.decode("utf-8-sig"))
    if isinstance(found, dict):
        outcome(read_hf_config, found)


@settings(max_examples=300, deadline=None)
@given(damaged(YAML, len(YAML)))
def test_yaml(raw: bytes):
    outcome(lambda data: parse_yaml(data, "settings"), raw)


@settings(max_examples=300, deadline=None)
@given(damaged(TOML, len(TOML)))
def test_a_cluster(raw: bytes):
    found = outcome(lambda data: cluster_from(parse_toml(data, "cluster"), "cluster").cluster(), raw)
    if found is not None:
        assert 0 < found.count == found.nodes * found.per_node <= MAX_DEVICES
        assert all(
            rate is None or rate > 0
            for rate in (found.links.scale_up, found.links.scale_out, found.links.host)
        )


RANK = {
    "rank": 0, "instants": {"load": 4, "forward": 12},
    "items": [
        {"component": "parameters", "path": "x", "bytes": 4, "at": {"load": 4, "forward": 4}},
        {"component": "unexplained", "path": "kernels", "bytes": 8, "low_bytes": 8, "high_bytes": 8, "at": {"forward": 8}},
    ],
}  # fmt: skip
RECORD = json.dumps({
    "schema": "memsheet/record/1", "asked": {"model": "x"}, "environment": {"torch": "2"}, "files": {"events": "e"},
    "sheet": {"schema": "memsheet/sheet/1", "witness": "measured", "model": {"name": "x"}, "ranks": [RANK]},
}).encode()  # fmt: skip
EVENTS = [
    ("segment_alloc", 0, 2**21),
    ("alloc", 0, 1000),
    ("free_requested", 0, 1000),
    ("free_completed", 0, 1000),
    ("segment_free", 0, 2**21),
]
SNAPSHOT = json.dumps({
    "schema": "memsheet/snapshot/1", "settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
    "events": [{"action": action, "addr": at, "size": size, "stream": 0, "pool_id": [0, 0]} for action, at, size in EVENTS],
    "segments": [{"total_size": 2**21, "segment_pool_id": [0, 0]}],
}).encode()  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(damaged(RECORD, len(RECORD)))
def test_records(raw: bytes):
    from_file(read_record, raw)
    document = from_file(lambda path: read_sheets(str(path)), raw)
    if document is not None:
        (sheet,) = document.sheets
        assert sheet.allocated.value >= 0 or any(
            item.component.value == "unexplained" for item in sheet.items
        )


@settings(max_examples=300, deadline=None)
@given(damaged(gzip.compress(RECORD, mtime=0), 400))
def test_packed_records(raw: bytes):
    from_file(read_record, raw)


@settings(max_examples=300, deadline=None)
@given(damaged(SNAPSHOT, len(SNAPSHOT)))
def test_snapshots(raw: bytes):
    recorded = from_file(read_snapshot, raw)
    if recorded is not None:
        truth = compare_with_replay(recorded)
        assert truth.replayed_peak_bytes - truth.before_bytes >= 0


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *LLAMA, "head_dim", "rope_scaling", "torch_dtype", "dtype", "quantization_config", "sliding_window", "layer_types", "hidden_act", "auto_map",
        "num_local_experts", "num_experts_per_tok", "n_routed_experts", "moe_intermediate_size", "text_config", "vision_config", "n_embd", "n_head",
        "n_layer", "q_lora_rank", "kv_lora_rank", "tie_word_embeddings", "attention_bias", "partial_rotary_factor",
    ]
)  # fmt: skip
TYPES = st.sampled_from(
    [
        "llama",
        "qwen3",
        "gemma3_text",
        "gpt2",
        "mixtral",
        "qwen3_moe",
        "deepseek_v3",
        "mamba",
        "jamba",
        "t5",
        "bert",
        "gemma3",
        "qwen2_vl",
    ]
)


@settings(max_examples=400, deadline=None)
@given(TYPES, st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_config_is_read_or_refused(model_type: str, changes: dict[str, Any]):
    outcome(read_hf_config, {**changes, "model_type": model_type})
