"""How often ``memsheet diagnose`` names the tensor behind a failed request, where the truth is known.

    python benchmarks/tensor_names.py                       rates by engine, context and kind of tensor
    python benchmarks/tensor_names.py --set unseen          of one set alone
    python benchmarks/tensor_names.py --traced FILE         with what traced_tensors.py has written
    python benchmarks/tensor_names.py --show wrong          and the cases of one outcome

The truth is a tensor that a step of an engine allocates: by the accounts that are kept of its code
(tensor_truths.py, served_tensors.py), or by a trace of a model's own code (traced_tensors.py). Its size is
printed as torch prints it, among more or less of what a log holds (tensor_texts.py). Rules of ``diagnose``
are written beside the first sets; the last has other models, lengths and texts, and is only counted.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from served_tensors import served_tensors
from tensor_texts import KINDS, printed_size, text_of
from tensor_truths import BYTES, SHORT, WEIGHTS, Truth, state_tensors, taped_tensors, traced_truths

from memsheet.diagnose.message import Term
from memsheet.diagnose.verdict import diagnose_texts

OUTCOMES = ("exact", "among", "unnamed", "wrong", "wrong as certain")
"""The truth alone, or among others that are named with it; nothing; another tensor as what it may be, and
another called certain.
"""
TRAINED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("transformers", {"precision": "bf16-autocast"}),
    ("transformers", {"precision": "bf16-pure", "attention": "eager"}),
    ("megatron", {"tp": 2, "gpus": "8xH100-80GB"}),
    ("megatron", {"tp": 4, "pp": 2, "gpus": "16xH100-80GB"}),
    ("torchtitan", {"gpus": "8xH100-80GB"}),
    ("deepspeed", {"zero": 2, "gpus": "8xH100-80GB"}),
    ("deepspeed", {"zero": 3, "gpus": "16xH100-80GB"}),
    ("fsdp1", {"zero": 3, "gpus": "8xH100-80GB"}),
)
MODELS = {
    "mending": ("llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-2-9b", "mistral-7b", "llama-2-13b",
                "gpt2-xl", "falcon-h1-3b", "bert-large", "qwen2.5-vl-7b", "phi-2", "llama-3-70b"),
    "wider": ("qwen2.5-0.5b", "qwen2-72b", "command-r", "gemma-2b", "phi-3-mini", "gpt-j-6b", "opt-1.3b", "bloom-3b", "falcon3-7b", "deepseek-v3",
              "qwen1.5-moe-a2.7b", "jamba-v0.1", "exaone-4.0-32b", "ernie-4.5-21b-a3b", "glm-4-9b", "nemotron-h-4b", "t5-large", "llava-1.5-7b"),
    "unseen": ("llama-3.2-3b", "qwen3-14b", "gemma-3-12b", "olmo-2-7b", "starcoder2-7b", "phi-3.5-moe", "olmoe-1b-7b", "glm-4.7-flash", "granite-3.1-8b",
               "mistral-nemo-12b", "qwen2.5-32b", "granite-4.0-h-tiny", "roberta-large", "pythia-6.9b", "mixtral-8x22b", "yi-34b", "qwen2.5-vl-3b"),
}  # fmt: skip
LENGTHS = {
    "wider": (2048, 7000, 12288, 32768),
    "mending": (1024, 2048, 4096, 8192, 3000),
    "unseen": (1536, 2048, 4096, 6144, 16384, 5000),
}
BATCHES = {"wider": (1, 2, 5, 16), "mending": (1, 2, 4, 8), "unseen": (1, 2, 3, 6)}
SERVED = (
    ("vllm", {"tp": 1}),
    ("vllm", {"tp": 2}),
    ("vllm", {"tp": 4}),
    ("sglang", {"tp": 1}),
    ("sglang", {"tp": 2}),
)
STEP_TOKENS = {"wider": (2048, 8192, 5000), "mending": (2048, 8192, 4096), "unseen": (16384, 8192, 6144)}
SEQUENCES = {"wider": (256, 384, 48), "mending": (256, 128, 1024), "unseen": (512, 200, 64)}


_SHAPE = re.compile(r"\[([\d, ]+)\] (\w+)")


def named_tensors(term: Term | None) -> list[tuple[Term, tuple[int, ...], str]]:
    """What a term names: the tensor, its axes and dtype."""
    terms = () if term is None else (term, *getattr(term, "others", ()))
    return [
        (each, tuple(int(axis) for axis in axes.split(",")), SHORT.get(dtype, dtype))
        for each in terms for axes, dtype in _SHAPE.findall(each.shape)
    ]  # fmt: skip


def kinds_of_term(term: Term) -> tuple[str, ...]:
    if "scores" in term.path or "mask" in term.path:
        return ("scores",)
    if "logits" in term.words or term.path.partition("/")[0] in ("loss", "sampler", "prompt_logprobs"):
        return ("logits",)
    if term.component == "kv_cache":
        return ("cache",)
    if term.component in WEIGHTS or term.path == "optimizer/step":
        return ("weight", "unit")
    return ("activation",)


def outcome_of(truth: Truth, term: Term | None) -> str:
    """One of ``OUTCOMES``."""
    named = named_tensors(term)
    right = [
        each for each, axes, dtype in named
        if truth.kind in kinds_of_term(each) and is_called(truth, each) and BYTES.get(dtype) == BYTES[truth.dtype] and _as_large(math.prod(axes), math.prod(truth.shape))
    ]  # fmt: skip
    if right:
        return "exact" if len(named) == 1 else "among"
    if named:
        return "wrong as certain" if term is not None and term.exact else "wrong"
    return "unnamed"


def is_told(truth: Truth, kind: str, text: str) -> bool:
    """Whether a text says all that arithmetic needs to name a tensor."""
    if not kind.startswith(("full", "name")) or (kind.startswith("name") and truth.said):
        return False
    if truth.kind == "unit" and kind == "name, no frames":
        return False  # nothing says what joins weights
    ranks = rf"(?<!\d){truth.ranks}(?!\d)"
    return "ranks" not in truth.said or re.search(ranks, text.partition("Traceback")[0]) is not None


_PROJECTION = re.compile(
    r"(?:^|[./])([a-z_0-9]*(?:proj|fc\d?|w\d+|dense\w*|c_attn|linear_\w+|query_key_value))(?=[./]|$)"
)
NAMED_OTHERWISE = {
    "linear_qkv": "qkv|q_proj", "linear_fc1": "gate_up|up_proj|fc1|c_fc|dense", "linear_proj": "o_proj|out|dense|c_proj",
    "linear_fc2": "down_proj|fc2|c_proj|dense", "linear_q_down_proj": "q_a_proj", "linear_q_up_proj": "q_b_proj", "linear_q_proj": "q_proj",
    "linear_kv_down_proj": "kv_a_proj", "linear_kv_up_proj": "kv_b_proj", "o_proj": "o_proj|out_proj|dense|c_proj",
    "qkv_proj": "qkv|c_attn|query_key_value|[Ww]qkv", "gate_up_proj": "gate_up|gate_and_up",
}  # fmt: skip
"""Modules of one program by another's names."""


def is_called(truth: Truth, term: Term) -> bool:
    """Whether a term's words have the module that a weight is of, or that makes an activation from its input;
    of hidden states any that are called so.
    """
    found = _PROJECTION.search(truth.part.partition("/aten.")[0])
    if (
        found is None
        or truth.kind not in ("weight", "activation")
        or "experts" in truth.part
        or "w13" in truth.part
        or found[1] == "w2"
    ):
        return True
    back = truth.frames[-1][2] == "_engine_run_backward"
    makes = not back and ("output" in truth.part or truth.part.endswith(("mm", "addmm")))
    if truth.kind == "activation" and not makes:
        return True  # of what lies in a module by another name, or is its input's
    return (
        "hidden states" in term.words
        or re.search(NAMED_OTHERWISE.get(found[1], re.escape(found[1])), term.words) is not None
    )


def _as_large(named: int, true: int) -> bool:
    return abs(named - true) * 4096 <= true


ENCODERS = ("bert", "roberta", "gpt2", "pythia", "t5")
"""Models that are taken at 512 positions."""


def truths_of(
    which: str, draw: random.Random, models: tuple[str, ...] | None = None, traced: Path | None = None
) -> Iterator[Truth]:
    """A few tensors of each case of a set."""
    for model in models or MODELS[which]:
        for engine, words in TRAINED:
            asked = {
                **words, "seq_len": draw.choice(LENGTHS[which]), "microbatch": draw.choice(BATCHES[which]),
                **({"seq_len": 512} if model.startswith(ENCODERS) else {}),
            }  # fmt: skip
            found = (*taped_tensors(engine, model, asked), *state_tensors(engine, model, asked))
            yield from _some_of(found, 3, draw)
        for engine, words in SERVED:
            asked = {
                **words, "tokens": draw.choice(STEP_TOKENS[which]), "sequences": draw.choice(SEQUENCES[which]),
                "cached": draw.randrange(2000, 40000) * 16, "gpus": f"{words['tp']}x",
            }  # fmt: skip
            yield from _some_of(tuple(served_tensors(engine, model, asked)), 3, draw)
    for case in json.loads(traced.read_text(encoding="utf-8")) if traced else ():
        yield from _some_of(tuple(traced_truths(case)), 8, draw)


def _some_of(truths: tuple[Truth, ...], most: int, draw: random.Random) -> list[Truth]:
    apart = [truth for truth in truths if truth.is_told_apart]
    return draw.sample(apart, min(most, len(apart)))


class Judged(NamedTuple):
    truth: Truth
    kind: str
    text: str
    term: Term | None
    outcome: str
    told: bool


def judged_cases(
    which: str, seed: int, models: tuple[str, ...] | None = None, traced: Path | None = None
) -> Iterator[Judged]:
    """Each truth in one kind of context, drawn by a seed."""
    draw = random.Random(f"{which} {seed}")
    for truth in truths_of(which, draw, models, traced):
        kind = draw.choice(KINDS)
        text = text_of(truth, which, kind, draw)
        term = diagnose_texts({"log": text}).term
        yield Judged(truth, kind, text, term, outcome_of(truth, term), is_told(truth, kind, text))


def rate_table(found: list[Judged], key: Callable[[Judged], str]) -> Iterator[str]:
    """Outcomes of those that are told, the share that is right, and of those that are not told."""
    groups: dict[str, list[Judged]] = {}
    for each in found:
        groups.setdefault(key(each), []).append(each)
    yield (
        f"{'':24}"
        + "".join(f"{name:>18}" for name in OUTCOMES)
        + "  right of told | not told: right, named wrong, as certain"
    )
    for name, group in (*sorted(groups.items()), ("all", found)):
        told = Counter(each.outcome for each in group if each.told)
        other = Counter(each.outcome for each in group if not each.told)
        right, all_told = told["exact"] + told["among"], sum(told.values())
        share = f"{right / all_told:7.1%} of {all_told:4}" if all_told else f"{'-':>15}"
        counts = (other["exact"] + other["among"], other["wrong"], other["wrong as certain"])
        beside = f"{', '.join(map(str, counts))} of {sum(other.values())}"
        yield f"{name:24}" + "".join(f"{told[each]:18}" for each in OUTCOMES) + f"{share} | {beside}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=tuple(MODELS), action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--traced", type=Path, action="append", help="a file of traced_tensors.py, of each set in turn"
    )
    parser.add_argument("--show", choices=OUTCOMES, action="append", default=[])
    asked = parser.parse_args()
    for number, which in enumerate(asked.set or MODELS):
        found = list(judged_cases(which, asked.seed, traced=asked.traced[number] if asked.traced else None))
        print(f"\n{which}: {len(found)} messages")
        for key in (lambda each: each.truth.engine, lambda each: each.kind, lambda each: each.truth.kind):
            print("\n".join(rate_table(found, key)), "\n")
        for each in found:
            if each.outcome in asked.show:
                print(case_line(each))


def case_line(judged: Judged) -> str:
    """A case, and what it came to."""
    truth = judged.truth
    named = [(term.component, shape, dtype) for term, shape, dtype in named_tensors(judged.term)]
    parts = (
        f"{judged.outcome}, {'told' if judged.told else 'not told'}", truth.engine, judged.kind, truth.model,
        f"{truth.kind} {truth.part} {list(truth.shape)} {truth.dtype}", printed_size(truth.size),
        f"{truth.frames[-1][2]}: {truth.frames[-1][3]}", str(named),
    )  # fmt: skip
    return " | ".join(parts)


if __name__ == "__main__":
    main()
