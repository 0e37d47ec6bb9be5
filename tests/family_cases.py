"""Run by test_trace_families.py in a process of its own, because tracing patches torch: prints what it finds
as JSON.
"""

import json
import sys
import time

from memsheet.errors import InputError
from memsheet.plan.document import plan_document
from memsheet.plan.words import request_from
from memsheet.resolve import resolve_request
from memsheet.timeline import instant_peaks, sheet_of, timeline_from
from memsheet.trace.requests import answer

SMALL = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
STATES = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4}
FAMILIES = {
    "mixtral": {**SMALL, **EXPERTS},
    "qwen3_moe": {**SMALL, **EXPERTS},
    "deepseek_v3": {
        **SMALL, "head_dim": 8, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32,
    },
    "gpt_oss": {**SMALL, **EXPERTS, "sliding_window": 32},
    "gemma3_text": {**SMALL, "sliding_window": 32},
    "phi": {**SMALL, "num_key_value_heads": 4},
    "qwen2": SMALL,
    "mamba": STATES,
    "falcon_mamba": STATES,
    "jamba": {**SMALL, "mamba_d_state": 8, "mamba_dt_rank": 4, "num_experts": 4, "num_hidden_layers": 8},
    "bamba": {**SMALL, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "attn_layer_indices": [1]},
    "bert": {**SMALL, "architectures": ["BertForMaskedLM"]},
    "t5": {"vocab_size": 320, "d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 2, "num_heads": 4},
    "whisper": {
        "vocab_size": 320, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_mel_bins": 16, "max_source_positions": 50,
        "max_target_positions": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    },
    "vit": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64, "patch_size": 16},
    "codegen": {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256, "n_ctx": 256},
    "rwkv": STATES,
    "clip": {},
}  # fmt: skip
EAGER = ("gpt_oss", "codegen")  # families without another choice
CASES = [
    *((family, {"precision": "bf16-pure"}) for family in FAMILIES),
    *(
        (family, {"precision": "bf16-autocast"})
        for family in ("mixtral", "deepseek_v3", "gpt_oss", "mamba", "jamba")
    ),
    ("qwen2", {"lora_rank": 4, "lora_targets": ("q_proj", "v_proj"), "precision": "bf16-pure"}),
    (
        "qwen2",
        {"lora_rank": 4, "lora_targets": ("q_proj", "v_proj"), "quantize": "nf4", "precision": "bf16-pure"},
    ),
    ("qwen2", {"precision": "bf16-pure", "optimizer": "adamw_8bit"}),
    ("mamba", {"precision": "bf16-pure", "device": "cpu"}),
    ("codegen", {"precision": "bf16-pure", "attention": "sdpa"}),
]


def case(family, short):
    """What a trace of a small model of a family comes to."""
    device = short.get("device", "cuda")
    asked = {"seq_len": 128, "microbatch": 2, "attention": "eager" if family in EAGER else "sdpa", **short}
    asked.pop("device", None)
    plan = resolve_request({**request_from(asked), "task": "train"}, None, real=True).plan
    config = {"model_type": family, **FAMILIES[family]}
    request = {
        "device": device,
        "scratch": False,
        "plan": plan_document(plan),
        "config": config,
        "ranks": [0],
        "depth": None,
    }
    began = time.perf_counter()
    try:
        (traced,) = answer(request)["timelines"]
    except InputError as error:
        return {"refused": str(error), "seconds": time.perf_counter() - began}
    timeline = timeline_from(traced["events"])
    sheet = sheet_of(timeline)
    held = {}
    for item in sheet.items:
        held[item.component.value] = held.get(item.component.value, 0) + max(
            b.value for b in item.at.values()
        )
    instants = [instant.value for instant in sheet.instants]
    return {
        "facts": traced["facts"],
        "held": held,
        "instants": instants,
        "sums": all(sheet.at(i).value == p.bytes for i, p in instant_peaks(timeline).items()),
    }


if __name__ == "__main__":
    found = {f"{family} {' '.join(map(str, short.values()))}": case(family, short) for family, short in CASES}
    json.dump(found, sys.stdout)
