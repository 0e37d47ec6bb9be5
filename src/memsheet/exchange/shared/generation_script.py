"""What the text of a script that generates says: the model of a pipeline, how many sequences it has at once,
and how long prompts and answers are. Nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_config import call_node, named_calls
from memsheet.exchange.shared.python_module import Module, Tree, attribute_path
from memsheet.exchange.shared.python_values import evaluate_expression
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.role_names import RoleValue
from memsheet.exchange.shared.script_places import LINE, NO_PROMPT
from memsheet.patterns import late_pattern

TASKS = ("text-generation", "image-text-to-text", "text2text-generation", "summarization", "translation")
"""Tasks whose pipelines generate (transformers v5 pipelines/__init__.py, SUPPORTED_TASKS)."""
MOST_STEPS_BACK = 8
"""Names and slices that are followed to where a list is made."""
_PIPELINE = late_pattern(rf"\bpipeline\(\s*(?:task\s*=\s*)?[\"'](?:{'|'.join(TASKS)})[\"']")
_PIPES = late_pattern(r"^[ \t]*(?:self\.)?(\w+)(?:\s*:[^=\n]+)?\s*=\s*(?:\w+\.)?pipeline\(", re.MULTILINE)
_TOKENIZERS = late_pattern(
    r"^[ \t]*(?:self\.)?(\w+)(?:\s*:[^=\n]+)?\s*="
    r"\s*(?:\w+\.)?\w*(?:Tokenizer|Processor)\w*\.from_pretrained\(",
    re.MULTILINE,
)


def makes_pipeline(text: str) -> bool:
    """Whether a script makes a pipeline that generates."""
    return "transformers" in text and _PIPELINE.search(text) is not None


def pipeline_loads(module: Module) -> Iterator[Tree]:
    """Calls that make a pipeline, as those that load its model: its own keywords and those of the model."""
    for held in named_calls(module, ("pipeline",), local=True):
        task, model = held.get("0", held.get("task")), held.get("model", held.get("1"))
        if task in TASKS:
            more = held.get("model_kwargs")
            rest = {at: one for at, one in held.items() if at not in ("0", "1", "model_kwargs")}
            yield {
                **(more if isinstance(more, dict) else {}),
                **rest,
                "0": model if model is not None else UNSET,
            }


def generation_sizes(module: Module, text: str, told: Callable[[str], RoleValue | None]) -> dict[str, Any]:
    """Tokens of a prompt and of an answer, and sequences at once: those of a pipeline's call, or as many as a
    tokenizer is given.
    """
    pipes = list(named_calls(module, tuple({"pipeline", *_PIPES.findall(text)}), local=True))
    calls = [*named_calls(module, ("generate",), local=True), *pipes]
    asked = [held["max_new_tokens"] for held in calls if positive_count(held.get("max_new_tokens"))]
    batches = [held["batch_size"] for held in pipes if positive_count(held.get("batch_size"))]
    batches += list(_texts_at_once(module, text)) if not batches else []
    known = [count for count in batches if count != UNSET]
    if not known and (drawn := _rows_drawn(module) or _role_count(told("batch"))):
        batches = known = [drawn]
    copies = [
        count
        for held in calls
        for at in ("num_return_sequences", "num_beams")
        if (count := positive_count(held.get(at)))
    ]
    sizes = {
        "answer": max(asked, default=None) or _role_count(told("answer")),
        "prompt": _role_count(told("prompt")),
        "batch": UNSET
        if len(known) < len(batches)
        else max(known, default=1) * max(copies, default=1)
        if known or copies
        else None,
    }
    return {"prompt": NO_PROMPT, **{at: size for at, size in sizes.items() if size is not None}}


def _texts_at_once(module: Module, text: str) -> Iterator[Any]:
    """How many texts a tokenizer is given in one call, where the script lists them or cuts them off a list;
    nobody's number where it makes rows of one length of texts that are not told.
    """
    names = tuple({*_TOKENIZERS.findall(text)})
    for held in named_calls(module, names, local=True) if names else ():
        texts = held.get("0", held.get("text"))
        if isinstance(texts, list) and texts:
            yield len(texts)
        elif count := _texts_of_call(module, held):
            yield count
        elif held.get("padding") and (not isinstance(texts, str) or texts == UNSET):
            yield UNSET


def _texts_of_call(module: Module, call: Tree) -> int | None:
    node = call_node(module, call)
    told = [one.value for one in node.keywords if one.arg == "text"] if node else []
    texts = [*(node.args[:1] if node else ()), *told]
    return _count_of_texts(module, texts[0], call[LINE], MOST_STEPS_BACK) if texts else None


def _count_of_texts(module: Module, node: ast.expr, line: int, steps: int) -> int | None:
    """How many elements an expression has: those of a slice that is as long as it says, of a list that is
    repeated, and of what is made of such, one of one; nothing where the text does not say it.
    """
    if steps == 0:
        return None
    follow: Callable[[ast.expr], int | None] = lambda one: _count_of_texts(module, one, line, steps - 1)  # noqa: E731
    match node:
        case ast.List(elts=held) if not any(isinstance(one, ast.Starred) for one in held):
            return len(held) or None
        case ast.BinOp(left=whole, op=ast.Mult(), right=times):
            many, one = (times, whole) if isinstance(whole, ast.List | ast.Name) else (whole, times)
            copies = positive_count(evaluate_expression(module, many, module.names, 0))
            count = follow(one)
            return copies * count if copies and count else None
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper, step=None)):
            return _slice_length(module, lower, upper)
        case ast.ListComp(generators=[ast.comprehension(iter=whole)]):
            return follow(whole)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted"), args=[whole]):
            return follow(whole)
        case ast.Name(id=name):
            made = _assigned(module, name, line)
            return follow(made) if made is not None else None
    return None


def _slice_length(module: Module, lower: ast.expr | None, upper: ast.expr | None) -> int | None:
    """Elements of ``[i:i + n]``, of ``[:n]``, and of either where the end is at most that."""
    match upper:
        case ast.Call(func=ast.Name(id="min"), args=ends):
            found = [count for one in ends if (count := _slice_length(module, lower, one))]
            return min(found, default=None)
        case ast.BinOp(left=start, op=ast.Add(), right=size) if lower is not None:
            same = [b for a, b in ((start, size), (size, start)) if ast.dump(a) == ast.dump(lower)]
            return positive_count(evaluate_expression(module, same[0], module.names, 0)) if same else None
    if upper is None or not (lower is None or (isinstance(lower, ast.Constant) and lower.value == 0)):
        return None
    return positive_count(evaluate_expression(module, upper, module.names, 0))


def _assigned(module: Module, name: str, line: int) -> ast.expr | None:
    """What a name was last given before a line, where it is given one thing alone."""
    found = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
        and node.lineno < line
        and any(attribute_path(target) == [name] for target in node.targets)
    ]
    return max(found, key=lambda node: node.lineno).value if found else None


def _rows_drawn(module: Module) -> int | None:
    """Rows that a loader hands out at once."""
    loads = named_calls(module, ("DataLoader",), local=True)
    return max((count for held in loads if (count := positive_count(held.get("batch_size")))), default=None)


def _role_count(found: RoleValue | None) -> int | None:
    return positive_count(found.value) if found is not None else None
