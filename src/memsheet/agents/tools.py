"""Questions as tools: what each takes, and its answer in words and as an object that is short enough to
be read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memsheet.questions.ask import ask
from memsheet.questions.asked import ASKED, MODEL, OF_JOB, request_schema

ABOUT: Mapping[str, str] = {
    "train": "GPU memory of a training or fine-tuning job: whether it fits, what takes the room, and the cheapest change that makes it fit.",
    "infer": "GPU memory of serving a model: whether it fits, the KV cache that is left and how many sequences it holds.",
    "plan": "The fastest ways to train a model on given GPUs that fit, with commands. Takes seconds.",
    "check": "Mistakes, verdict and memory of configuration files and launch scripts (DeepSpeed, accelerate, axolotl, TRL, Megatron, vLLM, SGLang …), given as text.",
    "diagnose": "What a job died of, from its error message or the end of its log given as text, and which changes would have helped.",
    "job": "GPU memory of a job of several models on the same cards (GRPO and its kin): every phase, whether all of them fit, and what helps.",
    "solve": "The longest sequence, largest micro-batch, fewest GPUs, largest model or most users that fit.",
    "explain": "What a word on an answer means, with its source.",
}  # fmt: skip
"""The questions that are tools, by name."""
WORDS = ("result", "word", "phrases", "choices", "change", "ways", "remarks", "sums", "assumed", "notes")
"""Of a sheet's view what says something beside its rows."""
ROW = ("name", "size", "share", "range", "words")
OUTPUT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "exit_code": {
            "type": "integer",
            "description": "0 fits, 10 does not fit, 11 uncertain, 2 bad input.",
        }
    },
    "required": ["exit_code"],
}


_JOB = ("model", "gpus", "engine")
_TRAINING = (
    *_JOB, "seq_len", "microbatch", "global_batch", "zero", "tp", "pp", "cp", "ep", "precision", "optimizer", "recompute",
    "attention", "lora_rank", "quantize", "offload",
)  # fmt: skip
OFFERED: Mapping[str, tuple[str, ...]] = {
    "train": _TRAINING, "plan": ("model", "gpus", "engine", "seq_len", "global_batch", "method", "host_memory"),
    "infer": (*_JOB, "tp", "max_model_len", "sequences", "kv_dtype", "quantize", "memory_fraction", "prompt_tokens"),
    "check": ("files", "model", "gpus", "seq_len"), "explain": ("term",), "diagnose": ("text", "model", "gpus"), "job": ("job", *OF_JOB),
    "solve": ("what", "most", *_TRAINING, "max_model_len", "sequences"),
}  # fmt: skip


class ToolResult(NamedTuple):
    """What a tool says: words, an object of ``OUTPUT``, and whether the input was bad."""

    words: str
    found: Mapping[str, Any]
    is_error: bool


def tool_schema(name: str) -> dict[str, Any]:
    """JSON Schema of what a tool takes: of a plan's options those that are asked for most, which is what
    whoever reads it has room for; any other is taken as well.
    """
    schema = request_schema(name)
    kept = {key: schema["properties"][key] for key in OFFERED[name]}
    if "model" in kept:
        kept["model"] = {"type": ["string", "object"], "description": MODEL["description"]}
    return {**schema, "properties": kept}


def answer_tool(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """The answer to a call. Never raises: bad input is told with every field, reason and hint."""
    answer = ask({**arguments, "question": name, "view": True})
    document = answer["document"]
    if document.get("schema") == "memsheet/error/1":
        problems = document["problems"]
        words = "; ".join(
            f"{one['field']}: {one['reason']}" + (f" (hint: {one['hint']})" if one["hint"] else "")
            for one in problems
        )
        return ToolResult(words, {"exit_code": answer["exit_code"], "problems": problems}, is_error=True)
    words, found = SHORT[name](answer)
    return ToolResult(words, {"exit_code": answer["exit_code"], **found}, is_error=False)


def _short_sheet(answer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    view = answer["view"]
    rows = [{key: row[key] for key in ROW} for row in view["rows"]]
    verdict = " ".join(filter(None, (view["word"], " · ".join(view["phrases"]))))
    change = view["change"]
    told = [verdict, *([_change_words(change)] if change else []), *view["remarks"]]
    return "\n".join(filter(None, told)), {
        **{key: view[key] for key in WORDS},
        "unit": view["unit"],
        "rows": rows,
    }


def _change_words(change: Mapping[str, Any]) -> str:
    made = ", ".join(row[0] for row in change["rows"])
    return f"{change['title']}: {made}; {change['after']}"


def _short_screen(answer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    view = answer["view"]
    kept = ("result", "word", "phrases", "mistakes", "plans")
    return view["screen"], {key: view[key] for key in kept if key in view}


def _short_diagnosis(answer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    document = answer["document"]
    return answer["view"]["screen"], {key: document[key] for key in ("verdict", "cures") if key in document}


def _short_text(answer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    document = answer["document"]
    return document["text"], document


SHORT: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any]]]] = {
    "train": _short_sheet, "infer": _short_sheet, "plan": _short_screen, "check": _short_screen, "explain": _short_text,
    "diagnose": _short_diagnosis, "job": _short_screen, "solve": _short_screen,
}  # fmt: skip
TITLES = {name: ASKED[name][0] for name in ABOUT}
