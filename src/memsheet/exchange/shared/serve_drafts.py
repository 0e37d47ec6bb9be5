"""Flags of speculative decoding: rows of vLLM's and of SGLang's commands
(``exchange.shared.serve_command``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

METHOD, MODEL, TOKENS = "speculative.method", "speculative.model", "speculative.tokens"
MOST_TEXT = 2**16
BY_ITSELF = ("mtp", "ngram")
"""Methods that need no model of their own."""

# ---- vLLM 0.33.0: one flag with an object in it, whose parts are places of their own here ------------------

CONFIG = "--speculative-config"
VLLM_METHODS = {"draft": "draft_model", "eagle": "eagle", "eagle3": "eagle3", "mtp": "mtp", "ngram": "ngram"}
VLLM_READ = {name: plan for plan, name in VLLM_METHODS.items()}
VLLM_ALIASES = {
    "--spec-method": f"{CONFIG}.method",
    "--spec-model": f"{CONFIG}.model",
    "--spec-tokens": f"{CONFIG}.num_speculative_tokens",
}
"""engine/arg_utils.py:1869."""
VLLM_KNOWN = frozenset(
    f"{CONFIG}.{name}"
    for name in (
        "prompt_lookup_max", "prompt_lookup_min", "revision", "code_revision", "disable_padded_drafter_batch", "disable_eagle_block_drop",
        "disable_lookahead_block_hashes", "disable_by_batch_size", "disable_logprobs",
    )
)  # fmt: skip
"""Parts that change no byte."""
VLLM_UNMODELLED: dict[str, tuple[Any, ...]] = {
    f"{CONFIG}.{name}": harmless
    for name, harmless in {
        "draft_sample_method": ("greedy",), "rejection_sample_method": ("standard",), "enforce_eager": (False,), "parallel_drafting": (False,),
        "use_local_argmax_reduction": (False,), "use_heterogeneous_vocab": (False,), "enable_adaptive_verification": (False,),
        **dict.fromkeys((
            "quantization", "kv_cache_dtype", "max_model_len", "moe_backend", "attention_backend", "draft_lm_head_quantization",
            "num_speculative_tokens_per_batch_size", "speculative_token_tree", "draft_load_config", "index_share_for_mtp_iteration",
        ), ()),
    }.items()
}  # fmt: skip


def expand_speculative_config(values: Values) -> Mapping[str, Any]:
    """A command's values with the object's parts as places; what is no object stays as it is."""
    text = values.get(CONFIG)
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        return values
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return values
    if not isinstance(parts, dict):
        return values
    named = {f"{CONFIG}.{name}": held for name, held in parts.items() if held is not None}
    return {**{at: held for at, held in values.items() if at != CONFIG}, **named}


OLDER_FLAGS = {
    "--speculative-model": f"{CONFIG}.model",
    "--num-speculative-tokens": f"{CONFIG}.num_speculative_tokens",
    "--speculative-draft-tensor-parallel-size": f"{CONFIG}.draft_tensor_parallel_size",
}
"""Flags that said the object's parts one by one (v0.7.3 engine/arg_utils.py; v0.9.2 has the object alone)."""
NGRAM_WORD = "[ngram]"
"""The model's name that asked for no model (v0.7.3 config.py, SpeculativeConfig)."""


def speculative_config_of_older_flags(values: Values) -> Mapping[str, Any]:
    """The object's parts of the flags that said them before, where no object says them."""
    if "--speculative-model" not in values or any(at.startswith(CONFIG) for at in values):
        return {}
    told = {part: values[at] for at, part in OLDER_FLAGS.items() if at in values}
    if told[f"{CONFIG}.model"] == NGRAM_WORD:
        return {**told, f"{CONFIG}.model": None, f"{CONFIG}.method": "ngram"}
    return told


def collapse_speculative_config(values: Values) -> Mapping[str, Any]:
    """And back: one flag with an object in it."""
    parts = {
        at.removeprefix(f"{CONFIG}."): held for at, held in values.items() if at.startswith(f"{CONFIG}.")
    }
    rest = {at: held for at, held in values.items() if not at.startswith(f"{CONFIG}.")}
    return {**rest, CONFIG: json.dumps(parts)} if parts else rest


def _vllm_method(value: Any, _: Values) -> Mapping[str, Any]:
    """The method by vLLM's names: a family's own heads are all one (config/speculative.py:1243)."""
    name = str(value)
    return {METHOD: "mtp" if name.endswith("_mtp") else VLLM_READ.get(name, name)}


def _vllm_model(value: Any, values: Values) -> Mapping[str, Any]:
    """Who drafts. Where no method is said, a name tells it (config/speculative.py:1431)."""
    said, name = values.get(f"{CONFIG}.method"), str(value)
    if said is None and name in ("ngram", "[ngram]"):
        return {METHOD: "ngram"}
    lower = name.lower()
    guessed = "eagle" if "eagle-" in lower else "eagle3" if "eagle3" in lower else "draft"
    method = _vllm_method(said, values)[METHOD] if said is not None else guessed
    return {METHOD: method} if method in BY_ITSELF else {METHOD: method, MODEL: name}


VLLM_KEYS = (
    Key(at=f"{CONFIG}.model", says=MODEL, back=_vllm_model, source="config/speculative.py:415"),
    Key(
        at=f"{CONFIG}.method",
        out=lambda a: VLLM_METHODS.get(a.get(METHOD, "")),
        back=_vllm_method,
        source="config/speculative.py:418",
    ),
    Key(at=f"{CONFIG}.num_speculative_tokens", says=TOKENS, source="config/speculative.py:413"),
    Key(at=f"{CONFIG}.draft_tensor_parallel_size", says="speculative.tp", source="config/speculative.py:427"),
)

# ---- SGLang 0.5.23 -----------------------------------------------------------------------------------------

ALGORITHM, DRAFT, STEPS = (
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--speculative-num-steps",
)
WIDTH, VERIFIED = "--speculative-eagle-topk", "--speculative-num-draft-tokens"
SGLANG_METHODS = {
    "draft": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "ngram": "NGRAM",
}
SGLANG_READ = {name: plan for plan, name in SGLANG_METHODS.items()}


def _read_draft_algorithm(value: Any, values: Values) -> Mapping[str, Any]:
    """EAGLE without a head of its own is the checkpoint's (arg_groups/speculative_hook.py:1116)."""
    name = str(value).upper()
    method = SGLANG_READ.get(name, str(value))
    return {METHOD: "mtp" if method == "eagle" and values.get(DRAFT) is None else method}


def _draft_path(value: Any, values: Values) -> Mapping[str, Any]:
    method = SGLANG_READ.get(str(values.get(ALGORITHM)).upper(), "")
    return {} if method in BY_ITSELF else {MODEL: str(value)}


def _draft_steps(asked: Values) -> Any:
    return None if asked.get(METHOD) in (None, "ngram") else asked.get(TOKENS)


def _verified_tokens(asked: Values) -> Any:
    tokens = asked.get(TOKENS)
    return tokens + 1 if asked.get(METHOD) is not None and isinstance(tokens, int) else None


def _verified_back(value: Any, values: Values) -> Mapping[str, Any]:
    """Beside steps it follows from them; ngrams have it alone (arg_groups/speculative_hook.py:1257, 1318)."""
    alone = values.get(STEPS) is None and isinstance(value, int) and not isinstance(value, bool)
    return {TOKENS: value - 1} if alone else {}


def draft_chain_width(asked: Values) -> Mapping[str, Any]:
    """That tokens are drafted one after another: more is a tree, of which a plan has no word."""
    return {WIDTH: 1} if asked.get(METHOD) not in (None, "ngram") else {}


SGLANG_KEYS = (
    Key(
        at=ALGORITHM,
        out=lambda a: SGLANG_METHODS.get(a.get(METHOD, "")),
        back=_read_draft_algorithm,
        source="plan.py:31",
    ),
    Key(at=DRAFT, says=MODEL, back=_draft_path, source="plan.py:36"),
    Key(at=STEPS, out=_draft_steps, back=lambda v, _: {TOKENS: v}, source="plan.py:58"),
    Key(at=VERIFIED, out=_verified_tokens, back=_verified_back, source="plan.py:66"),
)
