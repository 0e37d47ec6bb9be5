"""The release of SGLang whose room for adapters was read, and the layers of its pool (sgl-project/sglang)."""

from __future__ import annotations

TAG, SINCE = "v0.5.23", (0, 5, 20)
"""The one release whose pool of adapters was read, and since when it stands for others
(engines/sglang/facts.py).
"""

ADAPTERS = 8
"""max_loras_per_batch (v0.5.23 arg_groups/fields/lora.py:66)."""
JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), "qkv_proj"), **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj"), "gate_up_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj_with_mqa"),
    **{name: name for name in ("o_proj", "down_proj", "q_b_proj", "kv_b_proj", "embed_tokens", "lm_head")},
}  # fmt: skip
"""Names of layers by those of an adapter (v0.5.23 lora/utils.py:277 get_normalized_target_modules, :412 what
is supported).
"""
PARTS = {"qkv_proj": 3, "gate_up_proj": 2, "fused_qkv_a_proj_with_mqa": 2}
"""First matrices of a joined layer (v0.5.23 lora/utils.py:330 get_stacked_multiply)."""
