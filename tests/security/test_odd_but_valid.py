"""Files that look strange and are right: refusing them would send honest people away."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from craft import (
    LLAMA,
    array,
    config,
    entry,
    gguf,
    gguf_llama,
    info,
    key,
    raw_config,
    safetensors,
    string,
    text,
    u32,
)

from memsheet.errors import InputError
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.model import ModelSpec
from memsheet.readers.gguf import MAX_KEYS
from memsheet.readers.gguf import read_header as read_gguf
from memsheet.readers.gguf import stored_bytes as gguf_bytes
from memsheet.readers.model import read_model
from memsheet.readers.safetensors import folder_stored_bytes, read_index
from memsheet.readers.safetensors import read_header as read_safetensors
from memsheet.readers.safetensors import stored_bytes as safetensors_bytes


def model(path: Path) -> ModelSpec:
    return read_model(path, catalog=lambda _: None)


def pretty(**options: Any) -> bytes:
    return json.dumps(LLAMA, **options).encode()


CONFIGS: dict[str, bytes] = {
    "as it comes": config(),
    "a byte-order mark": b"\xef\xbb\xbf" + config(),
    "Windows line ends": pretty(indent=2).replace(b"\n", b"\r\n"),
    "old Mac line ends": pretty(indent=2).replace(b"\n", b"\r"),
    "tabs": pretty(indent="\t"),
    "white space around": b"\n\n  \t" + config() + b"\n \n",
    "no white space": pretty(separators=(",", ":")),
    "keys in reverse": json.dumps(dict(reversed(LLAMA.items()))).encode(),
    "escaped letters in keys": config().replace(b"hidden_size", b"hidden\\u005fsize"),
    "unknown keys": config(unknown=1, another={"deep": [1, 2, {"x": None}]}),
    "an unknown key in another script": config(размер=7, 大小=8, الحجم=9),
    "a name in another script": config(_name_or_path="组织/模型-7B"),
    "a name with an emoji": config(_name_or_path="llama 🦙"),
    "a name with an escaped emoji": raw_config('"_name_or_path": "\\ud83e\\udd99"'),
    "nulls for optional keys": config(head_dim=None, rope_scaling=None, attention_bias=None, tie_word_embeddings=None, torch_dtype=None),
    "null for the positions": config(max_position_embeddings=None),
    "torch_dtype": config(torch_dtype="bfloat16"),
    "dtype": config(dtype="float16"),
    "both spellings of dtype": config(dtype="bfloat16", torch_dtype="bfloat16"),
    "a dtype with its module": config(torch_dtype="torch.bfloat16"),
    "the key/value heads left out": json.dumps({k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}).encode(),
    "one key/value head": config(num_key_value_heads=1),
    "as many key/value heads as heads": config(num_key_value_heads=4),
    "one layer": config(num_hidden_layers=1),
    "as many layers as there may be": config(num_hidden_layers=512),
    "a vocabulary of one": config(vocab_size=1),
    "an odd vocabulary": config(vocab_size=50_257),
    "a vocabulary of 2^31": config(vocab_size=2**31),
    "a head width that is not hidden over heads": config(head_dim=128),
    "hidden not divisible by heads, with a head width": config(hidden_size=65, head_dim=16),
    "an int of 2^63": config(whatever=2**63),
    "an int of -2^63": config(whatever=-(2**63)),
    "minus zero": raw_config('"whatever": -0'),
    "a float of many digits": raw_config('"rope_theta": 10000.' + "0" * 5000),
    "a float that is nearly zero": raw_config('"initializer_range": 1e-400'),
    "a float in capitals": raw_config('"rope_theta": 1E+4'),
    "the largest float": raw_config('"whatever": 1.7976931348623157e308'),
    "an int for a float": config(rope_theta=1_000_000),
    "sixty levels": raw_config('"deep": ' + "[" * 60 + "]" * 60),
    "brackets inside texts": config(template="[" * 5000 + '{"a": "\\' + "{" * 5000),
    "quotes and backslashes in texts": config(template='\\"\\\\"' * 1000),
    "a chat template of 100 KB": config(chat_template="{% for m in messages %}" * 4500),
    "a thousand labels": config(id2label={str(i): f"LABEL_{i}" for i in range(1000)}),
    "the same key on two levels": config(text_config={"hidden_size": 1, "model_type": "llama"}),
    "an empty key": config(**{"": 1}),
    "keys that differ by case": config(Hidden_Size=128),
    "auto_map beside a known type": config(auto_map={"AutoConfig": "custom.Config"}),
    "architectures": config(architectures=["LlamaForCausalLM"], transformers_version="5.0.0"),
    "a nested quantization": config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "llama 3's rope": config(rope_scaling={"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192}),
    "tied embeddings": config(tie_word_embeddings=True),
    "gpt2 in its own words": json.dumps({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 96, "n_positions": 32}).encode(),
}  # fmt: skip

# name: (file, bytes of its tensors)
SAFETENSORS: dict[str, tuple[bytes, int]] = {
    "no tensors": (safetensors({}, 0), 0),
    "only metadata": (safetensors({"__metadata__": {"format": "pt"}}, 0), 0),
    "metadata of no keys": (safetensors({"__metadata__": {}, "a": entry()}), 16),
    "metadata that is null": (safetensors({"__metadata__": None, "a": entry()}), 16),
    "metadata with JSON in a text": (safetensors({"__metadata__": {"a": '{"b": [' * 100}, "a": entry()}), 16),
    "a scalar": (safetensors({"a": entry(shape=(), offsets=(0, 4))}, 4), 4),
    "an empty tensor": (safetensors({"a": entry(shape=(0,), offsets=(0, 0))}, 0), 0),
    "an empty tensor of a large other side": (safetensors({"a": entry(shape=(2**40, 0), offsets=(0, 0))}, 0), 0),
    "empty tensors between others": (safetensors({"a": entry(), "b": entry(shape=(0, 3), offsets=(16, 16)), "c": entry(offsets=(16, 32))}, 32), 32),
    "names not in the order of their bytes": (safetensors({"b": entry(offsets=(16, 32)), "a": entry()}, 32), 32),
    "padding after the header": (safetensors(json.dumps({"a": entry()}).encode() + b" " * 100), 16),
    "white space before the header": (safetensors(b" " + json.dumps({"a": entry()}).encode()), 16),
    "unknown keys of a tensor": (safetensors({"a": entry(note="x")}), 16),
    "a name in another script": (safetensors({"слой.0.вес": entry()}), 16),
    "an empty name": (safetensors({"": entry()}), 16),
    "a name of 10,000 letters": (safetensors({"a" * 10_000: entry()}), 16),
    "eight dimensions": (safetensors({"a": entry("U8", (1,) * 8, (0, 1))}, 1), 1),
    "four bits": (safetensors({"a": entry("F4", (3, 2), (0, 3))}, 3), 3),
    "six bits": (safetensors({"a": entry("F6_E2M3", (8,), (0, 6))}, 6), 6),
    "eight-bit exponents": (safetensors({"a": entry("F8_E8M0", (5,), (0, 5))}, 5), 5),
    "complex": (safetensors({"a": entry("C64", (2,), (0, 16))}), 16),
    "one byte more than aligned": (safetensors({"a": entry("BOOL", (1,), (0, 1)), "b": entry("F32", (1,), (1, 5))}, 5), 5),
    "ten thousand tensors": (safetensors({f"t{i}": entry("U8", (1,), (i, i + 1)) for i in range(10_000)}, 10_000), 10_000),
}  # fmt: skip

GGUF: dict[str, tuple[bytes, int]] = {
    "nothing at all": (gguf(), 0),
    "version 2": (gguf([u32("a", 1)], [info("x")], 32, version=2), 16),
    "keys without tensors": (gguf([text("general.name", "x")]), 0),
    "keys without tensors, not padded": (gguf([text("general.name", "x")], alignment=1), 0),
    "an alignment of 1": (gguf([u32("general.alignment", 1)], [info("x"), info("y", (4,), 0, 16)], 32, alignment=1), 32),
    "an alignment of 8": (gguf([u32("general.alignment", 8)], [info("x", (6,)), info("y", (4,), 0, 24)], 40, alignment=8), 40),
    "an alignment of 64 KiB": (gguf([u32("general.alignment", 2**16)], [info("x"), info("y", (4,), 0, 2**16)], 2**16 + 16, alignment=2**16), 32),
    "an alignment as 64 bits": (gguf([key("general.alignment", 10, struct.pack("<Q", 64))], [info("x")], 16, alignment=64), 16),
    "a scalar tensor": (gguf([], [info("x", ())], 32), 4),
    "an empty tensor": (gguf([], [info("x", (0,))]), 0),
    "an empty tensor and another at one place": (gguf([], [info("x"), info("y", (0, 5))], 32), 16),
    "a last tensor without padding": (gguf([], [info("x", (1,))], 4), 4),
    "gaps between tensors": (gguf([], [info("x"), info("y", (4,), 0, 4096)], 8192), 32),
    "tensors not in the order of their bytes": (gguf([], [info("x", (4,), 0, 32), info("y")], 64), 32),
    "a rest after the tensors": (gguf([], [info("x")], 5000), 16),
    "every scalar type": (gguf([key(f"k{k}", k, bytes(n)) for k, n in {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}.items()]), 0),
    "an empty text": (gguf([text("general.name", "")]), 0),
    "a text that is not UTF-8": (gguf([text("general.name", b"\xff\xfe")]), 0),
    "a text of 1 MiB": (gguf([text("tokenizer.chat_template", b"x" * 2**20)]), 0),
    "a text with escapes": (gguf([text("general.name", "\x1b[31m")]), 0),
    "an empty key": (gguf([u32("", 1)]), 0),
    "a key in another script": (gguf([u32("ключ", 1)]), 0),
    "an empty array": (gguf([key("a", 9, array(8, 0))]), 0),
    "an array of arrays": (gguf([key("a", 9, array(9, 2, array(4, 1, bytes(4)) + array(8, 1, string("x"))))]), 0),
    "tokens that are not UTF-8": (gguf([key("a", 9, array(8, 3, string(b"\xff") + string(b"") + string(b"\x1b")))]), 0),
    "a token of 300 KB": (gguf([key("a", 9, array(8, 2, string(b"x" * 300_000) + string("y")))]), 0),
    "a million numbers": (gguf([key("a", 9, array(6, 10**6, bytes(4 * 10**6))), u32("b", 1)]), 0),
    "infinite scores": (gguf([key("a", 9, array(6, 1, struct.pack("<f", float("-inf"))))]), 0),
    "the most keys": (gguf([key(f"{i}", 0, b"\0") for i in range(MAX_KEYS)]), 0),
    "four-bit blocks": (gguf([], [info("x", (64, 3), 2)], 108), 108),
    "super-blocks": (gguf([], [info("x", (256, 2), 12)], 288), 288),
    "a name of 127 letters": (gguf([], [info("x" * 127)], 32), 16),
}  # fmt: skip

# name: (text, what it means)
YAML: dict[str, tuple[bytes, Any]] = {
    "a byte-order mark": (b"\xef\xbb\xbfa: 1\n", {"a": 1}),
    "Windows line ends": (b"a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
    "one document with its marks": (b"---\na: 1\n...\n", {"a": 1}),
    "comments": (b"# before\na: 1 # beside\n", {"a": 1}),
    "a list on the level of its key": (b"a:\n- 1\n- 2\n", {"a": [1, 2]}),
    "JSON": (b'{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
    "yes and no": (b"a: yes\nb: off\n", {"a": True, "b": False}),
    "nulls": (b"a:\nb: ~\nc: null\n", {"a": None, "b": None, "c": None}),
    "a folded text": (b"a: >\n  one\n  two\n", {"a": "one two\n"}),
    "an asterisk in quotes": (b"a: '*b'\n", {"a": "*b"}),
    "ampersands and exclamation marks in texts": (b"a: x & y!\n", {"a": "x & y!"}),
    "a date stays text": (b"a: 2024-01-31\n", {"a": "2024-01-31"}),
    "hexadecimal": (b"a: 0xff\n", {"a": 255}),
    "an int with underscores": (b"a: 1_000_000\n", {"a": 1_000_000}),
    "an int of 2^63": (b"a: 9223372036854775808\n", {"a": 2**63}),
    "a float": (b"a: 1.0e-5\n", {"a": 1e-5}),
    "a number for a key": (b"max_memory:\n  0: 20GB\n", {"max_memory": {0: "20GB"}}),
    "another script": ("a: 模型\n".encode(), {"a": "模型"}),
    "sixty levels": (b"a: " + b"[" * 60 + b"]" * 60, None),
    "an empty mapping": (b"{}", {}),
}  # fmt: skip


@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS)
def test_a_config_is_read(content: bytes, tmp_path: Path):
    (tmp_path / "config.json").write_bytes(content)
    spec = model(tmp_path)
    assert spec.name.isprintable()
    assert spec.hidden in (64, 65)
    assert spec.source.kind == "file"


@pytest.mark.parametrize(("content", "size"), SAFETENSORS.values(), ids=SAFETENSORS)
def test_a_safetensors_header_is_read(content: bytes, size: int, tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(content)
    assert safetensors_bytes(read_safetensors(tmp_path / "a.safetensors")) == size
    assert folder_stored_bytes(tmp_path) == size


@pytest.mark.parametrize(("content", "size"), GGUF.values(), ids=GGUF)
def test_a_gguf_header_is_read(content: bytes, size: int, tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(content)
    assert gguf_bytes(read_gguf(tmp_path / "a.gguf")) == size


@pytest.mark.parametrize(("content", "meaning"), YAML.values(), ids=YAML)
def test_a_yaml_document_is_read(content: bytes, meaning: Any):
    found = parse_yaml(content, "settings")
    assert found == meaning or meaning is None


@pytest.mark.parametrize(("depth", "accepted"), [(64, True), (65, False)])
def test_depth_ends_at_64(depth: int, accepted: bool):
    for parse in (parse_json, parse_yaml):
        if accepted:
            parse("[" * depth + "]" * depth, "deep")
        else:
            with pytest.raises(InputError, match="nested deeper"):
                parse("[" * depth + "]" * depth, "deep")


def test_json_is_what_python_reads():
    text = json.dumps({"a": [1, -2.5, True, None, "x\u00e9\U0001f999\n"], "b": {"c": {}}, "d": []})
    assert parse_json(text, "a") == json.loads(text) == parse_json(text.encode(), "a")


def test_an_index_is_read(tmp_path: Path):
    for name, header in (
        ("a.safetensors", {"x": entry()}),
        ("b.safetensors", {"y": entry(), "z": entry(offsets=(16, 32))}),
    ):
        (tmp_path / name).write_bytes(safetensors(header, 16 * len(header)))
    index = {"metadata": {"total_size": 32.0}, "weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_index(tmp_path)
    assert found == read_index(tmp_path / "model.safetensors.index.json")
    assert found.shards == ("a.safetensors", "b.safetensors")
    assert found.total_bytes == 32
    assert folder_stored_bytes(tmp_path) == 32  # z is in the file, not in the index
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "b.safetensors").unlink()
    assert folder_stored_bytes(tmp_path) is None


def test_a_model_without_a_name_is_called_after_its_file(tmp_path: Path):
    (tmp_path / "tiny-q4.gguf").write_bytes(gguf_llama())
    spec = model(tmp_path / "tiny-q4.gguf")
    assert (spec.name, spec.vocab, spec.hidden, spec.stacks[0].layers) == ("tiny-q4", 96, 64, 2)
