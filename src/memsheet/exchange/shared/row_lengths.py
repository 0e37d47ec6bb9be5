"""How long the rows of a training are, as scripts for transformers' Trainer say it beside its arguments: what
a tokenizer cuts to, what a corpus is cut into, and what trainers of TRL's are given themselves; and the
lengths that programs take where nobody says one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET, Moved, Values
from memsheet.exchange.shared.python_config import call_node, named_calls
from memsheet.exchange.shared.python_module import Module
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.script_places import CLASS, TOKENIZERS

LOADS = "from_pretrained"
CUTS = ("tokenizer", "tok", "tokenize", "encode_plus", LOADS)
"""What scripts call that cuts rows to a length (transformers tokenization_utils_base.py, __call__)."""
OF_DATA = ("load_dataset", "load_from_disk", "open", "read_parquet", "read_json", "memmap", "AutoTokenizer")
"""What scripts call that reads rows that they do not draw."""
CORPORA: Mapping[str, tuple[str, ...]] = {
    "TextDataset": ("block_size", "2"), "LineByLineTextDataset": ("block_size", "2"), "ConstantLengthDataset": ("seq_length",),
}  # fmt: skip
"""Data sets of rows of one length, by the argument that says it (transformers v4.57
data/datasets/language_modeling.py; huggingface/trl v0.12 trl/trainer/utils.py).
"""
USUAL_LENGTH = "usual_length"
"""Under ``script``: a length that the program takes where nothing says one."""
OF_TOKENIZER = 1024
EXAMPLES: Mapping[str, tuple[str, int]] = {
    "run_summarization": ("max_source_length", 1024), "run_translation": ("max_source_length", 1024), "run_glue": ("max_seq_length", 128),
    "run_classification": ("max_seq_length", 128), "run_xnli": ("max_seq_length", 128), "run_qa": ("max_seq_length", 384), "run_plm": ("max_seq_length", 512),
}  # fmt: skip
"""Of the library's own examples, the argument that says a length and what it is by itself
(huggingface/transformers v5.3.0 examples/pytorch, DataTrainingArguments of each; run_glue as at 0055f83,
run_qa at 03ea97a, run_plm at 01080c6).
"""
SOURCE, ANSWER, OF_ANSWERS = "max_source_length", "max_target_length", 128
OF_BLOCKS = ("run_clm", "run_fim")
_OF_TRAINER = ("max_length", "max_seq_length")
_PARTS = ("max_prompt_length", "max_completion_length")
OF_SFT, OF_PAIRS, PAIRED = 1024, 512, ("DPO", "KTO", "CPO", "ORPO", "BCO")
"""What older trainers of TRL's cut to where they are given no length (huggingface/trl v0.9 trl/trainer/
{sft,dpo,kto,cpo,orpo}_trainer.py, __init__); the first is the most, as a tokenizer may say less.
"""


def tokenized_length(module: Module) -> int | None:
    """The length that a script cuts its rows to itself, the longest of several: by the tokenizer, else by
    what it cuts its corpus into.
    """
    asked = [
        length
        for held in named_calls(module, CUTS, local=True)
        for at in ("max_length", "model_max_length", "max_seq_length")
        if (length := positive_count(held.get(at)))
    ]
    return max(_block_lengths(module), default=None) or max(asked, default=None)


def has_whole_rows(module: Module, length: int) -> bool:
    """Whether every row has just ``length`` tokens: a corpus is cut into pieces of them, the tokenizer fills
    its rows up to them, or the script draws its rows itself and reads no others.
    """
    blocks = {*_block_lengths(module)}
    if blocks:
        return blocks == {length}
    texts = [held for held in named_calls(module, CUTS, local=True) if held[CLASS] != LOADS]
    if texts:
        return all(
            held.get("padding") == "max_length" and positive_count(held.get("max_length")) == length
            for held in texts
        )
    drawn = {shape[1] for shape in drawn_shapes(module)}
    return drawn == {length} and not any(named_calls(module, OF_DATA))


def drawn_shapes(module: Module) -> list[tuple[int, int]]:
    """Rows and lengths of the batches of tokens that a script draws itself (``torch.randint``)."""
    return [
        (rows, length)
        for held in named_calls(module, ("randint",), local=True)
        for at in ("size", "2", "1")
        if isinstance(shape := held.get(at), list)
        and len(shape) == 2
        and (rows := positive_count(shape[0]))
        and (length := positive_count(shape[1]))
    ]


def _block_lengths(module: Module) -> Iterator[int]:
    """Lengths of the pieces that a corpus is cut into (``[t[i : i + n] for i in range(0, total, n)]``)."""
    for held in named_calls(module, CORPORA, local=True):
        yield from (size for at in CORPORA[held[CLASS]] if (size := positive_count(held.get(at))))
    cut = [
        loop.iter
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ListComp) and is_slice_of_rows(node.elt)
        for loop in node.generators
    ]
    for held in named_calls(module, ("range",), local=True) if cut else ():
        size = positive_count(held.get("2"))
        if size and any(call_node(module, held) is one for one in cut):
            yield size


def is_slice_of_rows(node: ast.AST) -> bool:
    """Whether it is a piece of something, from one place on as many further (``rows[i : i + 16]``)."""
    match node:
        case ast.Subscript(slice=held):
            return is_slice_of_rows(held)
        case ast.Slice(lower=ast.Name(id=start), upper=ast.BinOp(left=ast.Name(id=same), op=ast.Add())):
            return start == same
    return False


def trainer_length(given: Mapping[str, Any], method: str | None) -> dict[str, Any]:
    """The length of a trainer of TRL's that is given it itself, as releases before 0.13 are, or the one that
    they take by themselves. ``method``: what it trains by, None of supervised fine-tuning.
    """
    for at in _OF_TRAINER:
        if given.get(at) is not None:
            return {"max_length": positive_count(given[at]) or UNSET}
    usual = OF_SFT if method is None else OF_PAIRS if method in PAIRED else None
    return {USUAL_LENGTH: usual} if usual else {}


def both_parts(given: Mapping[str, Any]) -> int | None:
    """A prompt's and an answer's length together, where both are said."""
    counts = [count for at in _PARTS if (count := positive_count(given.get(at)))]
    return sum(counts) if len(counts) == len(_PARTS) else None


def example_length(script: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The length that an example of the library's takes where its command says none, by the script's name."""
    name = re.split(r"[/\\]", script)[-1].removesuffix(".py")
    if name in OF_BLOCKS and given.get("block_size") is None:
        return {"block_size": TOKENIZERS, f"script.{USUAL_LENGTH}": OF_TOKENIZER}
    at, usual = EXAMPLES.get(name, ("", 0))
    answers = {ANSWER: OF_ANSWERS, **given}[ANSWER] if at == SOURCE else None
    told = {f"script.{USUAL_LENGTH}": usual} if at and given.get(at) is None else {}
    return {**told, **({ANSWER: answers} if answers else {})}


def answer_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """What rows of questions and answers move where the sheet is of as many tokens as a question has: an
    encoder's model has fewer in its decoder, and any other model may be given both in one row.
    """
    source = positive_count(values.get(SOURCE)) or positive_count(values.get(f"script.{USUAL_LENGTH}"))
    answers = positive_count(values.get(ANSWER))
    if not source or not answers:
        return
    both = asked["@encodes"]
    why = (
        f"an answer has {answers:,} tokens, and the sheet's decoder as many as its encoder, {source:,}"
        if both
        else f"a row may hold an answer of {answers:,} tokens, too, behind the {source:,} of the sheet"
    )
    low, high = (-asked["@passing"] if answers < source else 0), -(-asked["@passing"] * answers // source)
    yield Moved(at=ANSWER, why=why, low_bytes=low if both else 0, high_bytes=0 if both else high)
