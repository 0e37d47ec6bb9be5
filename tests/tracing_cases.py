"""Run by test_trace.py in a process of its own, because tracing patches torch: prints what it finds as
JSON.
"""

import json
import sys

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.timeline import instant_peaks, sheet_of
from memsheet.trace.fold import depth_of
from memsheet.trace.job import How, trace_training

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 512,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 500, "sliding_window_pattern": 2, "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
}  # fmt: skip
LLAVA = {
    "model_type": "llava", "text_config": LLAMA, "image_token_index": 499, "vision_feature_layer": -2,
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 7,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14, "projection_dim": 32,
    },
}  # fmt: skip
CASES = {
    "pure foreach": (LLAMA, {"precision": "bf16-pure", "optimizer_implementation": "foreach"}),
    "pure eager recomputed": (LLAMA, {"precision": "bf16-pure", "attention": "eager", "recompute": "full"}),
    "fp32 momentum": (LLAMA, {"precision": "fp32", "optimizer": "sgd_momentum"}),
    "accumulating": (LLAMA, {"precision": "bf16-pure", "microbatch": 2, "global_batch": 8}),
    "lora": (LLAMA, {"precision": "bf16-pure", "lora_rank": 8}),
    "beside a tower": (LLAVA, {"precision": "bf16-pure"}),
    "windowed": (GEMMA, {"precision": "bf16-pure", "attention": "eager"}),
}


def case(config, short):
    """A trace of all layers beside a folded one and the formulas."""
    spec = read_hf_config(config)
    plan = resolve_request({**request_from({"seq_len": 64, **short}), "task": "train"}, spec, real=True).plan
    stack = spec.stacks[-1]
    depth = depth_of(stack)
    full, folded = (trace_training(config, plan, How(scratch=False), d) for d in (None, depth))
    try:
        predicted = {i.value: account_rank(spec, plan).at(i).value for i in account_rank(spec, plan).instants}
    except InputError as error:
        predicted = {"refused": str(error)}
    return {
        "folds": depth is not None, "same": full == folded, "peaks": {i.value: p.bytes for i, p in instant_peaks(full).items()},
        "predicted": predicted, "sums": all(sheet_of(full).at(i).value == p.bytes for i, p in instant_peaks(full).items()),
        "events": len(full.events),
    }  # fmt: skip


if __name__ == "__main__":
    json.dump({name: case(*asked) for name, asked in CASES.items()}, sys.stdout)
