"""Run by test_trace_serving.py in a process of its own, because tracing patches torch: prints what it finds
as JSON.
"""

import json
import sys

import torch

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.run.model import build_config, build_model
from memsheet.sheet import Component, Instant
from memsheet.timeline import Timeline, instant_peaks, live_storages, sheet_of
from memsheet.trace.job import How, recorded_timeline, recording_context
from memsheet.trace.serving_job import trace_serving

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 512,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 500, "n_positions": 512}
GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 500, "sliding_window": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
MIXTRAL = {
    **LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8, "kv_lora_rank": 32, "q_lora_rank": 48,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "vocab_size": 500,
}  # fmt: skip
MODELS = {"llama": LLAMA, "gpt2": GPT2, "gemma": GEMMA, "mixtral": MIXTRAL, "deepseek": DEEPSEEK}
LENGTHS = {"max_model_len": 96, "prompt_tokens": 48}
CASES = {
    "llama": ("llama", LENGTHS, None), "llama batch": ("llama", {**LENGTHS, "sequences": 3}, None),
    "llama static": ("llama", LENGTHS, "static"), "llama fp8": ("llama", {**LENGTHS, "kv_dtype": "fp8"}, None),
    "llama fp32": ("llama", {**LENGTHS, "precision": "fp32"}, None), "llama eager": ("llama", {**LENGTHS, "attention": "eager"}, None),
    "llama long prompt": ("llama", {"max_model_len": 96, "prompt_tokens": 64}, None), "llama whole": ("llama", {"max_model_len": 96}, None),
    "gpt2": ("gpt2", LENGTHS, None), "gemma": ("gemma", LENGTHS, None), "gemma static": ("gemma", LENGTHS, "static"),
    "gemma short": ("gemma", {"max_model_len": 24, "prompt_tokens": 8}, None), "mixtral": ("mixtral", LENGTHS, None),
    "deepseek": ("deepseek", LENGTHS, None),
}  # fmt: skip
REFUSED = {
    "integers": ("llama", {**LENGTHS, "kv_dtype": "int8"}, None), "contradiction": ("llama", {**LENGTHS, "kv_dtype": "fp8"}, "static"),
    "several": ("llama", {**LENGTHS, "tp": 2}, None),
}  # fmt: skip
ALIKE = [(model, "dynamic") for model in MODELS] + [("llama", "static"), ("gemma", "static")]
GENERATED = [("llama", "dynamic"), ("llama", "static"), ("gpt2", "dynamic")]


def asked(model, short):
    spec = read_hf_config(MODELS[model])
    return spec, resolve_request({**request_from(short), "task": "infer"}, spec, real=True).plan


def cached(traced, at):
    return sum(
        traced.storages[n].bytes
        for n in live_storages(traced, at)
        if traced.storages[n].component is Component.KV_CACHE
    )


def case(model, short, cache):
    """What a trace holds at each instant, beside the formulas."""
    spec, plan = asked(model, short)
    traced = trace_serving(MODELS[model], plan, How(scratch=False), cache)
    sheet, found = sheet_of(traced), instant_peaks(traced)
    predicted = account_rank(spec, plan)
    decode = next(mark.at for mark in traced.marks if mark.instant is Instant.DECODE)
    return {
        "components": {i.value: {c.value: sheet.of(c, instant=i).value for c in Component if sheet.of(c, instant=i).value} for i in found},
        "predicted": {i.value: [predicted.at(i).low, predicted.at(i).value, predicted.at(i).high] for i in found},
        "peaks": {i.value: p.bytes for i, p in found.items()}, "sums": all(sheet.at(i).value == p.bytes for i, p in found.items()),
        "cached_at_the_end": cached(traced, len(traced.events) - 1), "cached_between": cached(traced, decode - 1),
        "growth": sum(i.at[Instant.DECODE].value for i in sheet.items if i.path.startswith("cache_growth")),
        "paths": sorted({i.path for i in sheet.items if i.component is Component.KV_CACHE}),
    }  # fmt: skip


def refused(model, short, cache):
    _, plan = asked(model, short)
    try:
        trace_serving(MODELS[model], plan, How(scratch=False), cache)
    except InputError as error:
        return str(error)
    return ""


def as_written(traced: Timeline) -> list[tuple[int, int]]:
    """Every event with the bytes that it is about."""
    return [(1 if e >= 0 else -1, traced.storages[e if e >= 0 else ~e].bytes) for e in traced.events]


def alike(model, cache):
    """Whether fake tensors tell of a CPU what real ones do, event by event."""
    _, plan = asked(model, {**LENGTHS, "precision": "fp32"})
    fake, real = (
        trace_serving(MODELS[model], plan, How(device="cpu", fake=f, scratch=False), cache)
        for f in (True, False)
    )
    return as_written(fake) == as_written(real)


def generated(model, cache):
    """Peaks of prefill and decode on a CPU: of the library's own generate, and of ours, for a prompt and the
    three tokens after it.
    """
    _, plan = asked(model, {"max_model_len": 50, "prompt_tokens": 48, "sequences": 3, "precision": "fp32"})
    how = How(device="cpu", fake=False, scratch=False)
    with recording_context(how) as recorder, torch.no_grad():
        built = build_model(build_config(MODELS[model], plan), plan, "cpu")
        prompts = torch.randint(1, 500, (3, 48))  # 0 would be padding
        recorder.mark(Instant.PREFILL)
        calls = iter(range(1, 10))
        built.register_forward_pre_hook(
            lambda *_: recorder.mark(Instant.DECODE) if next(calls) == 2 else None
        )
        built.generate(
            prompts,
            max_new_tokens=3,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            disable_compile=True,
            cache_implementation=None if cache == "dynamic" else cache,
        )
        recorder.stop()
    own = instant_peaks(trace_serving(MODELS[model], plan, how, cache))
    theirs = instant_peaks(recorded_timeline(recorder))
    return [[theirs[instant].bytes, own[instant].bytes] for instant in (Instant.PREFILL, Instant.DECODE)]


if __name__ == "__main__":
    found = {
        "cases": {name: case(*about) for name, about in CASES.items()}, "refused": {name: refused(*about) for name, about in REFUSED.items()},
        "alike": {f"{m} {c}": alike(m, c) for m, c in ALIKE},
        "generated": {f"{m} {c}": generated(m, c) for m, c in GENERATED},
    }  # fmt: skip
    json.dump(found, sys.stdout)
