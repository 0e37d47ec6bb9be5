"""torchtune's YAML of recipes that train nothing: generation (``tune run generate``), evaluation
(``eleuther_eval``) and quantization (``quantize``).

The sheet is of the library's layers, which is told. Lines are of pytorch/torchtune at bd2a0fc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.torchtune import ACTIVATIONS
from memsheet.exchange.formats.torchtune import FORMAT as TRAINED
from memsheet.exchange.formats.torchtune.checkpoints import (
    FOLDER,
    MODEL,
    read_checkpoint_folder,
    read_only_key,
)
from memsheet.exchange.shared.file_format import Format, Moved, Values, plan_word
from memsheet.exchange.shared.read_only_rows import read_elsewhere

GENERATE, EVALUATE, QUANTIZE = "recipes/generate.py", "recipes/eleuther_eval.py", "recipes/quantize.py"
ANSWER, LENGTH, BATCH = "max_new_tokens", "max_seq_length", "batch_size"
TP_PLAN, QUANTIZER = "tensor_parallel_plan._component_", "quantizer._component_"
PICTURE = "prompt.user.image"
TEMPLATE = 128
"""Tokens of a template around a prompt, at the most."""
LOGIT = 2 + 4 + 4
"""Bytes of a logit as it is computed, in fp32 (torchtune/modules/transformer.py:687) and as its logarithm."""


def _prompt_tokens(values: Values) -> int:
    """Tokens of a prompt at the most: no vocabulary of these has a token that is less than a byte."""
    texts = (values.get(at) for at in ("prompt.system", "prompt.user", "prompt.user.text"))
    return sum(len(text.encode()) for text in texts if isinstance(text, str)) + TEMPLATE


def _read_component(_: Any, values: Values) -> Mapping[str, Any]:
    """The library's layers; one process, and all that are started where the model is cut
    (recipes/dev/generate_v2_distributed.py:121); weights alone where they are quantized.
    """
    cut = {} if TP_PLAN in values else {"mesh.tp": 1}
    loads = {"phase": "load"} if not {ANSWER, LENGTH} & values.keys() else {}
    return {"engine": "transformers", **cut, **loads}


def _read_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    width = plan_word({"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}, value)
    cached = {"serving.kv_dtype": width} if {ANSWER, LENGTH} & values.keys() else {}
    return {"precision.parameters": width, **cached}


def _read_answer(value: Any, values: Values) -> Mapping[str, Any]:
    prompt = _prompt_tokens(values)
    whole = {"serving.max_model_len": prompt + value} if isinstance(value, int) else {}
    return {
        **whole,
        "serving.prompt_tokens": prompt,
        "serving.output_tokens": value,
        "serving.max_sequences": 1,
    }


KEYS = (
    read_only_key(MODEL, _read_component, f"{GENERATE}:90"), read_only_key(FOLDER, read_checkpoint_folder, f"{GENERATE}:47", reads_open=True),
    read_only_key("dtype", _read_dtype, f"{GENERATE}:39; {EVALUATE}:478"), read_only_key(ANSWER, _read_answer, f"{GENERATE}:152"),
    read_only_key(LENGTH, lambda v, _: {"serving.max_model_len": v}, f"{EVALUATE}:571"), read_only_key(BATCH, lambda v, _: {"serving.max_sequences": v}, f"{EVALUATE}:572"),
    read_only_key(TP_PLAN, read_elsewhere, "recipes/dev/generate_v2_distributed.py:128"),
)  # fmt: skip


def _left_open(values: Values) -> Mapping[str, Any]:
    told = {ACTIVATIONS: "are of torchtune's own layers, and the sheet is of the library's"}
    if QUANTIZER in values and "phase" in _read_component(None, values):
        return {QUANTIZER: f"{values[QUANTIZER]} (the sheet is of the weights before)"}
    return told


def _whole_logits(values: Values, asked: Values) -> Iterator[Moved]:
    """Logits of every position, where the library makes the last one's alone."""
    length, rows = values.get(LENGTH), values.get(BATCH, 1)
    tokens = length * rows if isinstance(length, int) and isinstance(rows, int) else 0
    tokens = tokens or (_prompt_tokens(values) if ANSWER in values else 0)
    if elements := tokens * asked.get("@vocab", 0):
        why = "logits of every position, in fp32 as well (torchtune/modules/transformer.py:687)"
        yield Moved(at="logits", why=why, low_bytes=0, high_bytes=elements * LOGIT)


def _prompt_length_note(text: str) -> tuple[str, ...]:
    """What no file says of its prompt: how many tokens its words are."""
    told = f"tokens of the prompt = its bytes and {TEMPLATE} of a template, at the most"
    return (told,) if ANSWER in text else ()


FORMAT = Format(
    name="torchtune-serve", file="config.yaml", kind="yaml", tested=TRAINED.tested, engines=(), keys=KEYS, marks=frozenset({ANSWER, "tasks", "quantizer"}),
    needs={"model": ..., "checkpointer": ...}, said={"task": "infer"}, absent=_left_open, moves=_whole_logits, taken=_prompt_length_note, program_known=lambda _: False,
    unmodelled={ACTIVATIONS: (), QUANTIZER: (), "enable_kv_cache": (True,), PICTURE: (), "use_flex": (False,)},
    known=frozenset({
        "output_dir", "model.*", "tokenizer.*", "checkpointer.*", "tensor_parallel_plan.*", "quantizer", "quantizer.*", "device", "seed", "log_level", "prompt.*", "prompt", "temperature",
        "top_k", "tasks", "limit", "apply_chat_template", "chat_template", "include_path", "use_distributed_state_dict", "cudnn_deterministic_mode", "instruct_template",
    }) - {key.at for key in KEYS},
)  # fmt: skip
