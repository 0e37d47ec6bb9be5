"""What the text of a script that generates says: the model of a pipeline, how many sequences it has at once,
and how long prompts and answers are. Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_config import named_calls
from memsheet.exchange.shared.python_module import Module, Tree
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.role_names import Told

NO_PROMPT = "not said: the sheet is of a prompt of one token, and longer ones need more"
TASKS = ("text-generation", "image-text-to-text", "text2text-generation", "summarization", "translation")
"""Tasks whose pipelines generate (transformers v5 pipelines/__init__.py, SUPPORTED_TASKS)."""
_PIPELINE = re.compile(rf"\bpipeline\(\s*(?:task\s*=\s*)?[\"'](?:{'|'.join(TASKS)})[\"']")
_PIPES = re.compile(r"^[ \t]*(?:self\.)?(\w+)(?:\s*:[^=\n]+)?\s*=\s*(?:\w+\.)?pipeline\(", re.MULTILINE)
_TOKENIZERS = re.compile(
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


def generation_sizes(module: Module, text: str, told: Callable[[str], Told | None]) -> dict[str, Any]:
    """Tokens of a prompt and of an answer, and sequences at once: those of a pipeline's call, or as many as a
    tokenizer is given.
    """
    pipes = list(named_calls(module, tuple({"pipeline", *_PIPES.findall(text)}), local=True))
    calls = [*named_calls(module, ("generate",), local=True), *pipes]
    asked = [held["max_new_tokens"] for held in calls if positive_count(held.get("max_new_tokens"))]
    batches = [held["batch_size"] for held in pipes if positive_count(held.get("batch_size"))]
    batches += list(_texts_at_once(module, text)) if not batches else []
    known = [count for count in batches if count != UNSET]
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
    """How many texts a tokenizer is given in one call, where the script lists them; nobody's number where it
    makes rows of one length of texts that are not told.
    """
    names = tuple({*_TOKENIZERS.findall(text)})
    for held in named_calls(module, names, local=True) if names else ():
        texts = held.get("0", held.get("text"))
        if isinstance(texts, list) and texts:
            yield len(texts)
        elif held.get("padding") and (not isinstance(texts, str) or texts == UNSET):
            yield UNSET


def _role_count(found: Told | None) -> int | None:
    return positive_count(found.value) if found is not None else None
