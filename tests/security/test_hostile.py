"""Files that lie, and what they may do: be refused, by one kind of error, at once, in words that are safe to
print.
"""

from __future__ import annotations

import gc
import json
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
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
from memsheet.guard import parse_json, parse_yaml, read_yaml
from memsheet.readers.cluster_file import read_cluster
from memsheet.readers.gguf import read_header as read_gguf
from memsheet.readers.model import read_model
from memsheet.readers.safetensors import folder_stored_bytes, read_index
from memsheet.readers.safetensors import read_header as read_safetensors

SECONDS = 0.5
MEMORY = 256 * 2**20
ESCAPE = "\x1b[31mred\x1b[0m\x07"
RIGHT_TO_LEFT = "\u202egnp.exe"


def model(path: Path) -> object:
    return read_model(path, catalog=lambda _: None)


CONFIGS: dict[str, bytes] = {
    "not a number": raw_config('"rope_theta": NaN'),
    "infinity": raw_config('"rope_theta": Infinity'),
    "minus infinity": raw_config('"rope_theta": -Infinity'),
    "a float beyond all floats": raw_config('"rope_theta": 1e999'),
    "a float beyond all floats, negative": raw_config('"rope_theta": -1e400'),
    "10^30 layers": config(num_hidden_layers=10**30),
    "10^18 layers": config(num_hidden_layers=10**18),
    "three million layers": config(num_hidden_layers=3_000_000),
    "negative hidden size": config(hidden_size=-4096),
    "negative vocabulary": config(vocab_size=-1),
    "negative layers": config(num_hidden_layers=-2),
    "no layers": config(num_hidden_layers=0),
    "no heads": config(num_attention_heads=0),
    "no key/value heads": config(num_key_value_heads=0),
    "no head width": config(head_dim=0),
    "heads wider than the hidden size": config(num_attention_heads=128, num_key_value_heads=128),
    "key/value heads that do not divide": config(num_attention_heads=4, num_key_value_heads=3),
    "more key/value heads than heads": config(num_attention_heads=4, num_key_value_heads=8),
    "a boolean for a count": config(hidden_size=True),
    "a float for a count": config(hidden_size=64.0),
    "a text for a count": config(hidden_size="64"),
    "a list for a count": config(hidden_size=[64]),
    "an object for a count": config(num_hidden_layers={"value": 2}),
    "a float for layers": config(num_hidden_layers=2.5),
    "a vocabulary of 2^62": config(vocab_size=2**62),
    "a number for a flag": config(attention_bias=1),
    "a list for an activation": config(hidden_act=["silu"]),
    "an activation with escapes": config(hidden_act=ESCAPE),
    "a dtype with escapes": config(torch_dtype=ESCAPE),
    "a dtype from right to left": config(dtype=RIGHT_TO_LEFT),
    "a text with escapes for a count": config(hidden_size=ESCAPE),
    "a text from right to left for a count": config(vocab_size=RIGHT_TO_LEFT),
    "duplicate keys": raw_config('"hidden_size": 128'),
    "duplicate keys, nested": raw_config('"rope_scaling": {"factor": 1, "factor": 2}'),
    "an escaped duplicate key": raw_config('"hidden\\u005fsize": 128'),
    "an int of 5,000 digits": raw_config('"vocab_size2": ' + "9" * 5000),
    "an int of 5,000 digits, negative": raw_config('"rope_theta": -' + "9" * 5000),
    "an int above 2^63": raw_config('"whatever": 9223372036854775809'),
    "10^5 nested lists": b"[" * 100_000,
    "10^5 nested lists, closed": b"[" * 100_000 + b"]" * 100_000,
    "10^5 nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "65 nested lists in a config": raw_config('"deep": ' + "[" * 64 + "]" * 64),
    "two million empty objects": b'{"a": [' + b"{}," * 2_000_000 + b"{}]}",
    "two million texts": b'{"a": [' + b'"",' * 2_000_000 + b'""]}',
    "four million escaped quotes": b'{"a": "' + b'\\"' * 4_000_000,
    "more than 8 MiB": b'{"a": "' + b"x" * (8 * 2**20) + b'"}',
    "empty": b"",
    "only white space": b" \r\n\t ",
    "only a byte-order mark": b"\xef\xbb\xbf",
    "UTF-16": json.dumps(LLAMA).encode("utf-16"),
    "UTF-16 without a mark": json.dumps(LLAMA).encode("utf-16-be"),
    "a depth bomb in UTF-16 without a mark": ("[" * 100_000).encode("utf-16-be"),
    "a depth bomb in UTF-32 without a mark": ("[" * 100_000).encode("utf-32-le"),
    "UTF-32": json.dumps(LLAMA).encode("utf-32"),
    "Latin-1": json.dumps({**LLAMA, "_name_or_path": "modèle"}, ensure_ascii=False).encode("latin-1"),
    "an overlong UTF-8 slash": raw_config('"_name_or_path": "') + b'\xc0\xaf"}',
    "half of a surrogate pair": raw_config('"model_type2": "\\ud800"'),
    "binary": bytes(range(256)) * 4,
    "zeros": bytes(4096),
    "a ZIP file": b"PK\x03\x04" + bytes(100),
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    "a list": b"[]",
    "a text": b'"llama"',
    "a number alone": b"7",
    "null": b"null",
    "an empty object": b"{}",
    "cut off": config()[:-20],
    "a rest after the object": config() + b"{}",
    "a trailing comma": raw_config("").replace(b", }", b",}"),
    "single quotes": b"{'model_type': 'llama'}",
    "a comment": b"// llama\n" + config(),
    "a control character in a text": raw_config('"_name_or_path": "a\x01b"'),
    "only auto_map": json.dumps({"auto_map": {"AutoConfig": "evil.Config"}}).encode(),
    "auto_map and an unknown type": json.dumps({**LLAMA, "model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}).encode(),
    "a type with a path in it": config(model_type="../../etc/passwd"),
    "a type that is a module of Python": config(model_type="os"),
    "a type with escapes": config(model_type=ESCAPE),
    "a type from right to left": config(model_type=RIGHT_TO_LEFT),
    "a type of a million letters": config(model_type="a" * 10**6),
    "a type that is a list": config(model_type=["llama"]),
    "a type that is null": config(model_type=None),
    "a key with escapes, twice": raw_config(f"{json.dumps(ESCAPE)}: 1, {json.dumps(ESCAPE)}: 2"),
}  # fmt: skip

ONE = entry()
SAFETENSORS: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "a header longer than the file": safetensors({"a": ONE}, length=10**6),
    "a header of 2^64 - 1 bytes": safetensors({"a": ONE}, length=2**64 - 1),
    "a header of 2^63 bytes": safetensors({"a": ONE}, length=2**63),
    "a header of no bytes": safetensors({"a": ONE}, length=0),
    "a header one byte short": safetensors({"a": ONE}, length=len(json.dumps({"a": ONE})) - 1),
    "a header that is a list": safetensors([]),
    "a header that is text": safetensors(b'"a"'),
    "a header with a byte-order mark": safetensors(b"\xef\xbb\xbf{}", 0),
    "a header that is binary": safetensors(b"\xff\xfe\x00\x01"),
    "a depth bomb": safetensors(b'{"a":' + b"[" * 100_000, 0),
    "duplicate tensors": safetensors(b'{"a": %s, "a": %s}' % ((json.dumps(ONE).encode(),) * 2)),
    "an unknown dtype": safetensors({"a": entry("F31")}),
    "a dtype with escapes": safetensors({"a": entry(ESCAPE)}),
    "a dtype that is a list": safetensors({"a": {**ONE, "dtype": ["F32"]}}),
    "no dtype": safetensors({"a": {"shape": [1], "data_offsets": [0, 4]}}),
    "no offsets": safetensors({"a": {"dtype": "F32", "shape": [4]}}),
    "a tensor that is a number": safetensors({"a": 7}),
    "a negative dimension": safetensors({"a": entry(shape=(-2, -2))}),
    "a boolean dimension": safetensors({"a": entry(shape=(True, 4))}),
    "a float dimension": safetensors({"a": entry(shape=(4.0,))}),
    "not a number for a dimension": safetensors(b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 16]}}'),
    "a dimension of 1e308": safetensors(b'{"a": {"dtype": "F32", "shape": [1e308], "data_offsets": [0, 16]}}'),
    "a dimension of 2^41": safetensors({"a": entry(shape=(2**41,), offsets=(0, 2**43))}),
    "2^63 elements": safetensors({"a": entry(shape=(2**31, 2**32), offsets=(0, 16))}),
    "dimensions that multiply past 2^60 and to 0": safetensors({"a": entry(shape=(2**40, 2**40), offsets=(0, 0))}, 0),
    "a thousand dimensions": safetensors({"a": entry(shape=(1,) * 1000, offsets=(0, 4))}, 4),
    "reversed offsets": safetensors({"a": entry(offsets=(16, 0))}),
    "negative offsets": safetensors({"a": entry(offsets=(-16, 0))}),
    "three offsets": safetensors({"a": entry(offsets=(0, 8, 16))}),
    "offsets past the file": safetensors({"a": entry(shape=(8,), offsets=(0, 32))}),
    "offsets shorter than the shape": safetensors({"a": entry(offsets=(0, 8))}, 8),
    "overlapping tensors": safetensors({"a": ONE, "b": entry(offsets=(8, 24))}, 24),
    "two tensors on the same bytes": safetensors({"a": ONE, "b": ONE}),
    "a gap": safetensors({"a": ONE, "b": entry(offsets=(32, 48))}, 48),
    "a gap at the start": safetensors({"a": entry(offsets=(16, 32))}, 32),
    "a rest that could hide a file": safetensors({"a": ONE}, 17),
    "an empty tensor inside another": safetensors({"a": ONE, "b": entry(shape=(0,), offsets=(4, 4))}),
    "half a byte": safetensors({"a": entry("F4", (1,), (0, 1))}, 1),
    "metadata that is a number": safetensors({"__metadata__": {"a": 1}, "a": ONE}),
    "metadata that is a list": safetensors({"__metadata__": [], "a": ONE}),
    "a name with escapes and a wrong size": safetensors({ESCAPE: entry(offsets=(0, 8))}, 8),
    "a name from right to left and a wrong size": safetensors({RIGHT_TO_LEFT: entry(offsets=(0, 8))}, 8),
    "another format": gguf(),
}  # fmt: skip

VALUE = u32("a", 1)
GGUF: dict[str, bytes] = {
    "empty": b"",
    "only the magic": b"GGUF",
    "another magic": gguf(magic=b"GGML"),
    "version 0": gguf(version=0),
    "version 1": gguf(version=1),
    "version 4": gguf(version=4),
    "big endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "2^64 - 1 keys": gguf([VALUE], key_count=2**64 - 1),
    "65,537 keys": gguf([VALUE], data=2**20, key_count=65_537),
    "a million keys that are not there": gguf([VALUE], key_count=1_000_000),
    "two keys that are one": gguf([VALUE, VALUE]),
    "2^64 - 1 tensors": gguf([VALUE], tensor_count=2**64 - 1),
    "more tensors than bytes": gguf([VALUE], tensor_count=1000),
    "a key of 2^64 - 1 letters": gguf([struct.pack("<Q", 2**64 - 1) + b"a" * 100]),
    "a key of 2^20 + 1 letters": gguf([key("a" * (2**20 + 1), 4, b"\0" * 4)]),
    "a key that is not UTF-8": gguf([key(b"\xff\xfe", 4, b"\0" * 4)]),
    "a text of 2^63 letters": gguf([key("a", 8, struct.pack("<Q", 2**63))], data=100),
    "a text longer than the file": gguf([key("a", 8, struct.pack("<Q", 1000))], data=100),
    "an unknown value type": gguf([key("a", 13, b"\0" * 8)]),
    "a value type of 2^32 - 1": gguf([key("a", 2**32 - 1, b"\0" * 8)]),
    "an array of 2^24 in 1 KB": gguf([key("a", 9, array(4, 2**24))], data=1000),
    "an array of 2^40 in 1 KB": gguf([key("a", 9, array(4, 2**40))], data=1000),
    "an array of 2^64 - 1 in 1 KB": gguf([key("a", 9, array(0, 2**64 - 1))], data=1000),
    "an array of 2^62 whose size wraps to 0": gguf([key("a", 9, array(4, 2**62))], data=1000),
    "2^24 texts in 1 KB": gguf([key("a", 9, array(8, 2**24))], data=1000),
    "2^40 texts in 1 KB": gguf([key("a", 9, array(8, 2**40))], data=1000),
    "texts whose lengths leave the file": gguf([key("a", 9, array(8, 4, struct.pack("<Q", 1100) * 4))], data=1000),
    "texts whose lengths wrap around": gguf([key("a", 9, array(8, 4, struct.pack("<Q", 2**64 - 8) * 4))], data=1000),
    "arrays of an unknown type": gguf([key("a", 9, array(77, 1))], data=100),
    "arrays nested three deep": gguf([key("a", 9, array(9, 1, array(9, 1, array(4, 1, b"\0" * 4))))]),
    "arrays nested without end": gguf([key("a", 9, array(9, 1) * 1000)]),
    "2^20 empty arrays": gguf([key("a", 9, array(9, 2**20, array(4, 0) * 2**20))]),
    "eight million empty texts": gguf([key("a", 9, array(8, 2**23))], data=2**26),
    "a text of 1 MiB, forty times": gguf([text(f"a{i}", bytes(2**20)) for i in range(40)]),
    "a boolean of 2": gguf([key("a", 7, b"\x02")]),
    "not a number": gguf([key("a", 6, struct.pack("<f", float("nan")))]),
    "infinity": gguf([key("a", 12, struct.pack("<d", float("inf")))]),
    "an alignment of 0": gguf([u32("general.alignment", 0)]),
    "an alignment of 24": gguf([u32("general.alignment", 24)]),
    "an alignment of 2^31": gguf([u32("general.alignment", 2**31)]),
    "an alignment that is text": gguf([text("general.alignment", "32")]),
    "an alignment that is true": gguf([key("general.alignment", 7, b"\x01")]),
    "five dimensions": gguf([], [info("a", (1,) * 5)], 32),
    "2^32 - 1 dimensions": gguf([], [string("a") + struct.pack("<I", 2**32 - 1) + bytes(64)]),
    "a dimension of 2^63": gguf([], [info("a", (2**63,))], 32),
    "dimensions whose product wraps to 0": gguf([], [info("a", (2**32, 2**32))], 32),
    "an unknown type": gguf([], [info("a", (32,), 99)], 128),
    "a type that was removed": gguf([], [info("a", (32,), 4)], 128),
    "rows that are not whole blocks": gguf([], [info("a", (33,), 2)], 128),
    "an offset that is not aligned": gguf([], [info("a", (4,), 0, 7)], 128),
    "an offset past the file": gguf([], [info("a", (4,), 0, 2**20)], 128),
    "an offset of 2^64 - 32": gguf([], [info("a", (4,), 0, 2**64 - 32)], 128),
    "overlapping tensors": gguf([], [info("a", (16,)), info("b", (4,), 0, 32)], 128),
    "two tensors on the same bytes": gguf([], [info("a"), info("b")], 128),
    "two tensors of one name": gguf([], [info("a"), info("a", (4,), 0, 32)], 128),
    "data cut off": gguf([], [info("a", (64,))], 128),
    "infos cut off": gguf([], [info("a")[:-4]]),
    "a name with escapes and a wrong type": gguf([], [info(ESCAPE, (32,), 99)], 128),
    "a name from right to left and a wrong type": gguf([], [info(RIGHT_TO_LEFT, (32,), 99)], 128),
    "another format": safetensors({"a": ONE}),
}  # fmt: skip

GGUF_MODELS: dict[str, bytes] = {
    "no architecture": gguf([VALUE]),
    "an unknown architecture": gguf([text("general.architecture", "evil")]),
    "an architecture with escapes": gguf([text("general.architecture", ESCAPE)]),
    "an architecture that is a number": gguf([u32("general.architecture", 1)]),
    "an architecture that is not UTF-8": gguf([text("general.architecture", b"\xff\xfe")]),
    "no sizes": gguf([text("general.architecture", "llama")]),
    "no heads": gguf_llama(**{"attention.head_count": 0}),
    "2^32 - 1 layers": gguf_llama(block_count=2**32 - 1),
    "more layers than blocks": gguf_llama(block_count=9),
    "another width than the embedding": gguf_llama(embedding_length=128),
    "key/value heads that do not divide": gguf_llama(u32("llama.attention.head_count_kv", 3)),
    "key/value heads that differ by layer": gguf_llama(key("llama.attention.head_count_kv", 9, array(4, 2, struct.pack("<II", 2, 4)))),
    "a text for the vocabulary": gguf([text("general.architecture", "llama"), text("llama.vocab_size", "x")]),
    "2^31 parts": gguf_llama(u32("split.count", 2**31)),
    "parts that are not there": gguf_llama(key("split.count", 2, struct.pack("<H", 3))),
}  # fmt: skip

YAML: dict[str, bytes] = {
    "an alias bomb": b"a: &a [x, x]\n" + b"".join(b"%c: &%c [%s]\n" % (c, c, b", ".join([b"*%c" % (c - 1)] * 9)) for c in range(98, 118)),
    "an anchor": b"a: &b 1\n",
    "an alias to nothing": b"a: *b\n",
    "a merge": b"a: &b {c: 1}\nd:\n  <<: *b\n",
    "an anchor in itself": b"a: &a [*a]\n",
    "a merge of itself": b"a: &a {<<: *a}\n",
    "a merge of a text": b"a: &a x\nb: {<<: *a}\n",
    "anchors in one another, 200 levels": b"a0: &a0 1\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (n, n, n - 1) for n in range(1, 200)),
    "merges of merges": b"a0: &a0 {x: 1}\n" + b"".join(b"a%d: &a%d {<<: [%s], k%d: 1}\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9), n) for n in range(1, 9)),
    "a tag that runs code": b"!!python/object/apply:os.system ['true']\n",
    "a tag of a known type": b"a: !!int '7'\n",
    "a tag of its own": b"a: !evil 7\n",
    "binary by tag": b"a: !!binary aGFsbG8=\n",
    "two documents": b"a: 1\n---\nb: 2\n",
    "10^5 nested lists": b"[" * 100_000,
    "300 nested mappings": b"".join(b" " * i + b"a:\n" for i in range(300)),
    "10^5 dashes": b"- " * 100_000,
    "10^5 question marks": b"? " * 100_000,
    "duplicate keys": b"a: 1\na: 2\n",
    "not a number": b"a: .nan\n",
    "infinity": b"a: .inf\n",
    "an int of 5,000 digits": b"a: " + b"9" * 5000 + b"\n",
    "an int of 60 to the 30": b"a: " + b"1:" * 30 + b"1\n",
    "an int without digits": b"a: 0x_\n",
    "a key that is a list": b"? [a]\n: 1\n",
    "a key that is null": b"~: 1\n",
    "a list": b"- 1\n",
    "empty": b"",
    "only a comment": b"# nothing\n",
    "UTF-16": "a: 1\n".encode("utf-16"),
    "a control character": b"a: \x1b[31m\n",
    "a tab": b"\ta: 1\n",
    "more than 256 KiB": b"a: 1\n" * 60_000,
    "a quote that does not end": b'a: "' + b"x" * 100_000,
}  # fmt: skip

ALIASES = {
    what: content
    for what, content in YAML.items()
    if what not in ("an anchor", "a merge", "a list", "empty", "only a comment")
}
"""What is refused where anchors are followed, too."""

TOML: dict[str, bytes] = {
    "10^4 nested lists": b"a = " + b"[" * 10_000,
    "200 nested lists": b"a = " + b"[" * 200 + b"]" * 200,
    "5,000 nested tables": b"a = " + b"{b = " * 3000,
    "a key of 8,000 parts": b"a" + b".a" * 7999 + b" = 1",
    "a header of 8,000 parts": b"[a" + b".a" * 7999 + b"]",
    "2,700 tables of one list": b"[[a]]\n" * 2700,
    "60 keys of 126 parts": b"".join(b"a%d" % n + b".a" * 125 + b" = 1\n" for n in range(60)),
    "duplicate keys": b"count = 8\ncount = 9\n",
    "a table twice": b"[links]\n[links]\n",
    "not a number": b'device = "L4"\n[links]\nhost_gb_s = nan\n',
    "infinity": b'device = "L4"\n[links]\nhost_gb_s = inf\n',
    "an int of 5,000 digits": b"count = " + b"9" * 5000,
    "an int above 2^63": b"count = 9223372036854775809",
    "a float beyond all floats": b"count = 1e999",
    "a date": b"count = 2026-01-01",
    "a time": b"count = 12:00:00",
    "empty": b"",
    "only a comment": b"# nothing\n",
    "UTF-16": 'device = "L4"'.encode("utf-16"),
    "Latin-1": 'device = "é"'.encode("latin-1"),
    "binary": bytes(range(256)),
    "a control character": b"device = '\x1b[31m'\n",
    "an escaped control character": b'device = "\\u001b[31m"\n',
    "a device from right to left": f'device = "{RIGHT_TO_LEFT}"'.encode(),
    "a key with escapes": b'"\\u001b[31m" = 1\n',
    "a device of 10,000 letters": b'device = "' + b"a" * 10_000 + b'"',
    "a thousand keys": b"".join(b"a%d = 1\n" % n for n in range(1000)),
    "more than 16 KiB": b"a = 1\n" * 6000,
    "a string that does not end": b'device = "L4',
    "negative GPUs": b'device = "L4"\ncount = -8\n',
    "true GPUs": b'device = "L4"\ncount = true\n',
    "a million million GPUs": b'device = "L4"\nnodes = 1000000\nper_node = 1000000\n',
    "no memory": b'device = "L4"\ncount = 8\nhost_memory = "0B"\n',
    "memory without end": b'device = "L4"\ncount = 8\nhost_memory = "999999999TiB"\n',
    "two kinds of node": b'[[nodes]]\ndevice = "L4"\n[[nodes]]\ndevice = "T4"\n',
}  # fmt: skip

INDEXES: dict[str, bytes] = {
    "no map": b"{}",
    "an empty map": b'{"weight_map": {}}',
    "a map of numbers": b'{"weight_map": {"a": 1}}',
    "a file of another folder": b'{"weight_map": {"a": "../../secret.safetensors"}}',
    "a file at the root": b'{"weight_map": {"a": "/etc/passwd.safetensors"}}',
    "another format": b'{"weight_map": {"a": "pytorch_model.bin"}}',
    "a name with escapes": json.dumps({"weight_map": {"a": ESCAPE + ".safetensors"}}).encode(),
    "duplicate tensors": b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
}  # fmt: skip


def read_with_aliases(path: Path) -> Any:
    return parse_yaml(path.read_bytes(), str(path), aliases=True)


READERS: dict[str, tuple[str, Callable[[Path], Any], dict[str, bytes]]] = {
    "config": ("config.json", model, CONFIGS),
    "safetensors": ("model.safetensors", read_safetensors, SAFETENSORS),
    "gguf": ("model.gguf", read_gguf, GGUF),
    "gguf model": ("model.gguf", model, GGUF_MODELS),
    "yaml": ("settings.yaml", read_yaml, YAML),
    "yaml with aliases": ("compose.yaml", read_with_aliases, ALIASES),
    "index": ("model.safetensors.index.json", read_index, INDEXES),
    "cluster": ("cluster.toml", read_cluster, TOML),
    "cluster in yaml": ("cluster.yaml", read_cluster, YAML),
}
CASES = [
    pytest.param(kind, content, id=f"{kind}: {what}")
    for kind, (_, _, corpus) in READERS.items()
    for what, content in corpus.items()
]


def refusal(read: Callable[[Path], Any], path: Path) -> InputError:
    """The error that reading ``path`` ends in, within the time limit; anything else fails. The collector's
    turn over what other tests left is none of the reader's time.
    """
    gc.disable()
    try:
        start = time.process_time()
        with pytest.raises(InputError) as caught:
            read(path)
        spent = time.process_time() - start
    finally:
        gc.enable()
    assert spent < SECONDS
    return caught.value


def check_words(error: InputError) -> None:
    """Every problem is told in single lines that a terminal can show."""
    assert error.problems
    for problem in error.problems:
        first, *hints = str(problem).split("\n")
        assert first.isprintable()
        assert len(first) > 10
        assert len(first) < 500
        assert len(hints) <= 1
        assert all(hint.isprintable() for hint in hints)


@pytest.mark.parametrize(("kind", "content"), CASES)
def test_it_is_refused(kind: str, content: bytes, tmp_path: Path):
    name, read, _ = READERS[kind]
    path = tmp_path / name
    path.write_bytes(content)
    check_words(refusal(read, path))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("config", "two million empty objects"), ("config", "two million texts"), ("config", "four million escaped quotes"),
        ("config", "10^5 nested objects"), ("gguf", "an array of 2^40 in 1 KB"), ("gguf", "2^24 texts in 1 KB"), ("gguf", "2^20 empty arrays"),
        ("gguf", "eight million empty texts"), ("gguf", "a text of 1 MiB, forty times"), ("safetensors", "a header of 2^63 bytes"),
        ("yaml", "an alias bomb"), ("yaml", "10^5 dashes"), ("yaml with aliases", "an alias bomb"), ("yaml with aliases", "merges of merges"),
    ],
)  # fmt: skip
def test_it_takes_little_memory(kind: str, what: str, tmp_path: Path):
    name, read, corpus = READERS[kind]
    path = tmp_path / name
    path.write_bytes(corpus[what])
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_a_crowded_but_legal_json_takes_little_memory():
    crowded = b"[" + b'{"a":1},' * 160_000 + b"1]"
    tracemalloc.start()
    try:
        parse_json(crowded, "crowded")
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "read", [model, read_safetensors, read_gguf, read_yaml, read_index, folder_stored_bytes]
)
@pytest.mark.parametrize("name", ["missing.json", "x" * 5000, "a\0b.json", "loop.json", ESCAPE])
def test_a_name_that_leads_nowhere_is_no_crash(read: Callable[[Path], Any], name: str, tmp_path: Path):
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    if read is folder_stored_bytes:
        assert read(tmp_path / name) is None
    else:
        check_words(refusal(read, tmp_path / name))


@pytest.mark.parametrize("read", [read_safetensors, read_gguf, read_yaml])
def test_a_folder_is_not_a_file(read: Callable[[Path], Any], tmp_path: Path):
    check_words(refusal(read, tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize(
    ("name", "read"), [("a.json", model), ("a.gguf", model), ("a.safetensors", model), ("a.yaml", read_yaml)]
)
def test_a_pipe_is_not_waited_for(name: str, read: Callable[[Path], Any], tmp_path: Path):
    os.mkfifo(tmp_path / name)
    check_words(refusal(read, tmp_path / name))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs devices")
@pytest.mark.parametrize("read", [read_safetensors, read_gguf, read_yaml, model])
def test_a_device_is_not_read(read: Callable[[Path], Any]):
    check_words(refusal(read, Path("/dev/zero")))


@pytest.mark.parametrize("folder", ["empty", "only a config", "two models"])
def test_a_folder_that_is_no_checkpoint(folder: str, tmp_path: Path):
    if folder == "only a config":
        (tmp_path / "config.json").mkdir()
    if folder == "two models":
        (tmp_path / "a.gguf").write_bytes(gguf_llama())
        (tmp_path / "b.gguf").write_bytes(gguf_llama())
    check_words(refusal(model, tmp_path))


@pytest.mark.parametrize("huge", ["config.json", "model.gguf", "settings.yaml", "model.safetensors"])
def test_a_sparse_file_of_a_terabyte_is_not_read(huge: str, tmp_path: Path):
    with (tmp_path / huge).open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 10**6, 65_536) if huge.endswith("gguf") else b"{")
        try:
            file.truncate(2**40)
        except OSError:
            pytest.skip("no sparse files of this size here")
    read = read_yaml if huge.endswith("yaml") else model
    check_words(refusal(read, tmp_path / huge))


def test_a_missing_shard_is_not_left_out_of_the_sum(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(safetensors({"a": ONE}))
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    check_words(refusal(folder_stored_bytes, tmp_path))
    (tmp_path / "b.safetensors").write_bytes(safetensors({"c": ONE}))
    check_words(refusal(folder_stored_bytes, tmp_path))


@pytest.mark.parametrize(
    "name", ["", " ", "lama", "a/b/c", "../x", "a/../b", "-a/b", "org/na me", "org/name@", "org/name@../x", "a" * 10_000, ESCAPE, RIGHT_TO_LEFT, "a\0b", "https://example.org/x/y", "~nobody/x"]
)  # fmt: skip
def test_a_name_that_is_nothing_is_refused(name: str):
    with pytest.raises(InputError) as caught:
        read_model(name, catalog=lambda _: None)
    check_words(caught.value)
