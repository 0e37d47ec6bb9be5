"""A Modelfile of Ollama, which runs llama.cpp (ollama/ollama fb307609, docs/modelfile.mdx,
docs/context-length.mdx, api/types.go, envconfig/config.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import EVERYTHING, Format, Key, Moved, Values
from memsheet.exchange.shared.gguf_names import OF_THE_FILE, cache_dtype_of, gguf_model_name, plan_file_name
from memsheet.exchange.shared.serve_command import BESIDE, parse_human_number
from memsheet.exchange.shared.serve_script import (
    IMAGES,
    script_lines,
    server_flags_index,
    split_line_commands,
)
from memsheet.patterns import late_pattern
from memsheet.units import GIB, format_bytes

VERSION = "Ollama fb307609"
RUNNER, CONTEXT = "api/types.go:586-595, Runner", "docs/context-length.mdx"
SERVER = "envconfig/config.go:215-275"
LENGTH = "num_ctx"
NO_LENGTH = "not said: 4,096 where all cards have less than 24 GiB, 32,768 below 48, 262,144 above"
LENGTHS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4_096))
"""From so many bytes on: one GiB less than the documentation says, for what cards have less than their names
(server/routes.go, Serve: defaultNumCtx).
"""
_INSTRUCTION = late_pattern(
    r"(?P<word>FROM|PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE|LICENSE|REQUIRES)\s+(?P<rest>\S.*)",
    re.IGNORECASE,
)
_OF_IMAGES = late_pattern(r"^(?:RUN|CMD|COPY|ENTRYPOINT|WORKDIR|ENV|ARG|EXPOSE)\s", re.MULTILINE)
_MARKS = frozenset({"PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER"})


def _parse_modelfile(text: str) -> Mapping[str, Any]:
    """Instructions of a Modelfile: FROM, ADAPTER, and parameters by their names; nothing where it is none, as
    the file of an image.
    """
    if _OF_IMAGES.search(text):
        return {}
    found: dict[str, Any] = {}
    words = set[str]()
    for line in _outside_quotes(text):
        told = _INSTRUCTION.match(line.strip())
        if told is None:
            continue
        word, rest = told["word"].upper(), told["rest"].strip()
        words.add(word)
        if word == "PARAMETER":
            name, _, value = rest.partition(" ")
            found[name.lower()] = parse_human_number(value.strip().strip('"'))
        elif word in ("FROM", "ADAPTER") and len(rest.split()) == 1:  # of code, "from x import y"
            found.setdefault(word, rest.strip('"'))
    return {LENGTH: NO_LENGTH, **found} if "FROM" in found and words & _MARKS else {}


RUN, LENGTH_VARIABLE = ("ollama", "run"), "OLLAMA_CONTEXT_LENGTH"
_VARIABLES: dict[str, tuple[Any, ...]] = {
    "OLLAMA_GPU_OVERHEAD": (0,), "OLLAMA_NEW_ENGINE": (), "OLLAMA_LLM_LIBRARY": (),
}  # fmt: skip
"""Of the server's environment, what changes bytes and is not accounted, with the values of the sheet
(envconfig/config.go).
"""
PARALLEL, CACHE_TYPE, FLASH = "OLLAMA_NUM_PARALLEL", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION"
_COUNTED = (PARALLEL, CACHE_TYPE, FLASH)
_ONE_AT_A_TIME = (
    "llama3.2-vision", "qwen3-vl", "qwen3vl", "qwen3.5", "qwen35", "qwen3-next", "qwen3next", "lfm2", "nemotron-h", "nemotron_h",
)  # fmt: skip
"""In the names of models that one request at a time is served of, whatever the environment says
(server/sched.go:505-510, by families).
"""


def _parse_command(text: str) -> Mapping[str, Any]:
    """``ollama run NAME`` in a script or a line, the first of them, with what the environment says before
    it (cmd/cmd.go, RunHandler; its further words are a prompt); else the server alone, which is told its
    model by whoever asks: ``ollama serve``, a container of its image, or a unit of systemd with its
    variables.
    """
    said, served = dict[str, Any](), False
    for words in (part for line in script_lines(text) for part in split_line_commands(line)):
        plain = [_BEFORE_VARIABLE.sub("", word) for word in words]
        for word in plain:
            name, _, value = word.partition("=")
            if value and name in (LENGTH_VARIABLE, *_COUNTED, *_VARIABLES):
                said[LENGTH if name == LENGTH_VARIABLE else name] = parse_human_number(value)
        at = next((n for n in range(len(words)) if tuple(words[n : n + 2]) == RUN), None)
        model = next((word for word in words[(at or 0) + 2 :] if not word.startswith("-")), None)
        if at is not None and model is not None:
            return {"FROM": model, LENGTH: NO_LENGTH, **said}
        served |= server_flags_index(plain, (SERVE,), (IMAGES["ollama"],)) is not None
    served |= bool(said) and _UNIT.search(text) is not None
    return {"FROM": None, LENGTH: NO_LENGTH, **said} if served else {}


SERVE = ("ollama", "serve")
_BEFORE_VARIABLE = late_pattern(r"^(?:--env=|-e=?(?=[A-Z])|Environment=|ExecStart=)")
"""What stands before a variable in an option of a container's start, or in a line of a unit."""
_UNIT = late_pattern(r"^\[Service\]\s*$", re.MULTILINE)


def _outside_quotes(text: str) -> Iterable[str]:
    """Lines that stand in no text of three quotes."""
    quoted = False
    for line in text.splitlines():
        if not quoted:
            yield line
        quoted ^= line.count('"""') % 2 == 1


def _moved_by_runner(values: Values, asked: Values) -> Iterable[Moved]:
    """Layers that do not fit are computed by the processor, unless their number on cards is said. A model
    that sees comes with its projector, which is loaded with it (llm/server.go, NewLlamaServer: projectors;
    model/models, whose models have the tower among their tensors).
    """
    if asked.get("@towers") and not str(values.get("FROM")).endswith(".gguf"):
        size = format_bytes(int(asked.get("@tower_parameters") or 0) * 2)
        name = values.get("FROM")
        why = f"{name} comes with its projector, {size} in F16, and pictures take more: none is in the sheet"
        yield Moved(at="projector", why=why, low_bytes=0, high_bytes=EVERYTHING)
    if values.get("num_gpu") in (None, -1):
        why = "Ollama leaves to the processor what does not fit"
        yield Moved(at="num_gpu", why=why, low_bytes=-EVERYTHING, high_bytes=0)


def _length_by_cards(values: Values, total_bytes: int) -> Mapping[str, Any]:
    """The context that the server takes by the memory of all cards, where nobody says one."""
    if values.get(LENGTH) != NO_LENGTH:
        return {}
    tokens = next(tokens for least, tokens in LENGTHS if total_bytes >= least)
    return {"serving.max_model_len": tokens * _requests_at_once(values)}


def _requests_at_once(values: Values) -> int:
    """Slots of the runner, each of which has the context (llm/llama_server.go:375, -c num_ctx * -np)."""
    name, said = str(values.get("FROM")).lower(), values.get(PARALLEL)
    alone = any(family in name for family in _ONE_AT_A_TIME)
    return said if isinstance(said, int) and said > 0 and not alone else 1


def _read_context(value: Any, values: Values) -> Mapping[str, Any]:
    """Cells of all slots."""
    return {"serving.max_model_len": value * _requests_at_once(values) if isinstance(value, int) else value}


def _written_context(asked: Values) -> int | None:
    """And back: what each slot has of the cells of all."""
    cells, slots = asked.get("serving.max_model_len"), asked.get("serving.max_sequences") or 1
    return cells // slots if isinstance(cells, int) else None


def _read_flash_switch(value: Any, _: Values) -> Mapping[str, Any]:
    return {"attention": "eager"} if str(value).lower() in ("0", "false", "f") else {}


def _compose_modelfile(values: Values, _: Values) -> str:
    lines = [f"PARAMETER {name} {value}" for name, value in values.items() if name != "FROM"]
    return "\n".join([f"FROM ./{values['FROM']}", *lines, ""])


KEYS = (
    Key(at="FROM", says="@model", out=plan_file_name, back=lambda v, _: {"@model": gguf_model_name(str(v))}, source="docs/modelfile.mdx, FROM"),
    Key(at=LENGTH, says="serving.max_model_len", out=_written_context, back=_read_context, decides=(NO_LENGTH,), source=CONTEXT),
    Key(at="num_batch", says="serving.max_batched_tokens", source=RUNNER),
    Key(at="num_gpu", says="serving.gpu_layers", back=lambda v, _: {"serving.gpu_layers": v} if v != -1 else {}, source=RUNNER),
    Key(at=PARALLEL, out=lambda _: None, back=lambda _, values: {"serving.max_sequences": _requests_at_once(values)}, source=SERVER),
    Key(at=CACHE_TYPE, out=lambda _: None, back=lambda v, _: {"serving.kv_dtype": cache_dtype_of(v)}, source=SERVER),
    Key(at=FLASH, out=lambda _: None, back=_read_flash_switch, source=SERVER),
)  # fmt: skip
SERVER_DEFAULTS = {"serving.max_sequences": 1, "serving.kv_dtype": "fp16", "attention": "flash"}
"""Of the server's environment: OLLAMA_NUM_PARALLEL, OLLAMA_KV_CACHE_TYPE, OLLAMA_FLASH_ATTENTION
(envconfig/config.go:216-275, docs/faq.mdx:335-354).
"""
_KNOWN = """
num_predict temperature seed stop top_k top_p min_p typical_p repeat_last_n repeat_penalty presence_penalty frequency_penalty mirostat mirostat_eta
mirostat_tau num_thread num_keep tfs_z penalize_newline numa use_mmap use_mlock low_vram
"""
"""Of sampling and the processor: no byte of a GPU."""

FORMAT = Format(
    name="ollama", file="Modelfile", kind="text", tested=VERSION, engines=("llama.cpp",), keys=KEYS, marks=frozenset({"FROM"}), beside=BESIDE | OF_THE_FILE | {"serving.logical_batch"}, differs={"@model": "a file of that model, in the plan's types"},
    known=frozenset(_KNOWN.split()), unmodelled={"ADAPTER": (), "main_gpu": (0,), "draft_num_predict": (0,), **_VARIABLES},
    said={"task": "infer", "engine": "llama.cpp", **SERVER_DEFAULTS}, moves=_moved_by_runner, by_cards=_length_by_cards, compose=_compose_modelfile, parse=_parse_modelfile, also=_parse_command,
)  # fmt: skip
