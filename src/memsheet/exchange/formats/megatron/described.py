"""The model that a script's own flags describe: the arguments that decide on its tensors, by their names, and
the vocabulary that its tokenizer has.

Vocabularies are those of the tokenizers that need no file of their own: GPT-2's merges, BERT's uncased word
pieces (NVIDIA/Megatron-LM 23e00ed megatron/training/tokenizer/tokenizer.py:30-110). ``Llama2Tokenizer`` is a
class for any file of pieces: it has Llama 2's where the file's path names that model, or one that took its
pieces over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.megatron.multimodal import language_sizes, sees
from memsheet.exchange.shared.file_format import AUTO, UNSET, Values
from memsheet.exchange.shared.megatron_flags import PROGRAM
from memsheet.patterns import late_pattern

SIZES = (
    "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels", "num-key-value-heads",
    "max-position-embeddings", "seq-length", "num-experts", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-router-topk",
    "kv-lora-rank", "q-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim", "vocab-size",
)  # fmt: skip
SWITCHED = (
    "swiglu", "quick-geglu", "squared-relu", "group-query-attention", "disable-bias-linear", "add-qkv-bias", "qk-layernorm",
    "untie-embeddings-and-output-weights", "use-rotary-position-embeddings", "no-position-embedding", "multi-latent-attention",
)  # fmt: skip
WORDS = ("normalization", "position-embedding-type", "rotary-percent", "moe-layer-freq")
NEEDED = ("--num-layers", "--hidden-size", "--num-attention-heads")
OTHER = (
    "--hybrid-override-pattern",
    "--hybrid-layer-pattern",
    "--is-hybrid-model",
    "--encoder-num-layers",
    "--decoder-num-layers",
)
"""Flags of models that are no stack of alike layers: two stacks, or layers of several kinds."""
ELSEWHERE = ("--heterogeneous-layers-config-path",)
"""Flags by which the sizes are those of a file that is not here. A checkpoint's arguments replace those of
the command line, and who says sizes beside them says the same ones.
"""
OTHER_PROGRAMS = late_pattern(
    r"generat|inference|server|eval|convert|preprocess|prune|quantize|export|t5|mamba|hybrid"
)
"""Programs that train no decoder, by their names."""
VOCABULARY, OBJECTIVE = "$.vocabulary", "$.objective"
KNOWN = {"GPT2BPETokenizer": 50257, "BertWordPieceLowerCase": 30522}
PIECES, OF_LLAMA_2 = "Llama2Tokenizer", 32_000
LLAMA_2 = late_pattern(
    r"(?:^|/)(?:meta-)?(?:code)?llama[-_]?[12]?(?:[-_]\d+b)?"
    r"(?:[-_](?:hf|chat|instruct|base|ckpts?|weights|tokenizer))*(?:/|$)"
    r"|mi[sx]tral",
    re.IGNORECASE,
)
"""In the path of a file of pieces, names of models that have Llama 2's number of them; those that others
lengthened have more words in theirs.
"""
ASSUMED = 128_256
"""Of a tokenizer that nobody knows: Llama 3's, which is large, so that a table is rather over than under."""


def described_model(values: Values) -> Mapping[str, Any] | None:
    """The arguments that describe the model, by name; None where a size that it needs is not in the file, or
    it is of another kind.
    """
    if any(values.get(at) for at in (*OTHER, *ELSEWHERE)) or OTHER_PROGRAMS.search(
        str(values.get(PROGRAM, ""))
    ):
        return None
    return described_stack(values)


def described_stack(values: Values) -> Mapping[str, Any] | None:
    """The sizes of a decoder of alike layers, whatever their program does; None where one is missing."""
    if any(not isinstance(values.get(at), int) or values[at] is True for at in NEEDED):
        return None
    own = {**_one_head_of_keys(values), **language_sizes(values)}
    said = {name: held for name in SIZES if isinstance(held := _largest_count(values.get(f"--{name}")), int)}
    said |= {name: held for name in WORDS if (held := values.get(f"--{name}")) not in (None, UNSET, AUTO)}
    switches = {name: True for name in SWITCHED if values.get(f"--{name}") not in (None, False)}
    said = {name: held for name, held in said.items() if (name, held) != ("num-experts", 1)}
    vocabulary = {} if "vocab-size" in said else {"vocab-size": vocabulary_of(values)[0]}
    all_said = {**said, **vocabulary, **switches, **own}
    return {name.replace("-", "_"): held for name, held in all_said.items()}


def _one_head_of_keys(values: Values) -> Mapping[str, Any]:
    """One head of keys and values, in a fork's word for it (bigcode-project/Megatron-LM
    megatron/arguments.py, --attention-head-type).
    """
    if values.get("--attention-head-type") != "multiquery":
        return {}
    return {"group-query-attention": True, "num-query-groups": 1}


def _largest_count(value: Any) -> Any:
    """A count; of a list the largest, as of experts that a layer each may have."""
    counts = [one for one in value if isinstance(one, int)] if isinstance(value, list) else []
    return max(counts) if counts else value if not isinstance(value, bool) else None


def vocabulary_of(values: Values) -> tuple[int, bool]:
    """How many tokens the vocabulary has, and whether the file says it."""
    if isinstance(held := values.get("--vocab-size"), int):
        return held, True
    kind = str(values.get("--tokenizer-type", "GPT2BPETokenizer" if "--merge-file" in values else ""))
    if kind == PIECES:
        return OF_LLAMA_2, bool(LLAMA_2.search(str(values.get("--tokenizer-model", ""))))
    return (KNOWN[kind], True) if kind in KNOWN else (ASSUMED, False)


def left_open_sizes(values: Values) -> Mapping[str, Any]:
    """What of the described model is in no file here: the tokenizer's own vocabulary, and another program's
    heads and towers.
    """
    if described_model(values) is None:
        return {}
    program = str(values.get(PROGRAM, ""))
    words = f"is {program}'s own, and the sheet is of a decoder of these sizes with a causal loss"
    other = {OBJECTIVE: words} if "bert" in program or sees(values) else {}
    return {**other, **left_open_vocabulary(values)}


def left_open_vocabulary(values: Values) -> Mapping[str, Any]:
    """How many tokens are taken for a tokenizer that nobody says."""
    count, known = vocabulary_of(values)
    taken = f"is of {count:,} tokens, for the tokenizer's is in no file here: --vocab-size says it"
    return {} if known else {VOCABULARY: taken}
