"""Rules of llama.cpp that say where tensors lie (``-ot PATTERN=BUFFER``): which layers' routed experts they
keep on the host.
"""

from __future__ import annotations

import re

from memsheet.patterns import late_pattern

LONGEST, WILD_CARDS, LAYERS = 300, 3, 256
"""Characters and wild cards of a pattern that is tried, and layers it is tried on."""
_PLAIN = late_pattern(r"(?:[\w.|^$-]|\\[.d]|\[[\w-]+\][+*]?|\\d[+*]|\.[*+]|\(\??:?|\)(?![*+?{]))+")
"""Patterns without a repeated group or a wild card within one: tried in a time that their length bounds."""
_WILD = late_pattern(r"[*+]")
MATRICES = ("ffn_up_exps", "ffn_gate_exps", "ffn_down_exps")
OTHERS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_k_b", "attn_v_b",
    "attn_q_norm", "attn_k_norm", "ffn_norm", "ffn_gate_inp", "ffn_up", "ffn_gate", "ffn_down", "ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp",
    "ffn_gate_inp_shexp", "ssm_in", "ssm_out",
)  # fmt: skip
"""Tensors of a layer besides (src/llama-arch.cpp)."""
ENDS = ("token_embd.weight", "output.weight", "output_norm.weight")


def host_expert_layers(rules: str) -> int | None:
    """How many layers' routed experts rules keep on the host, the first ones, ``LAYERS`` for all; None where
    they move another tensor, other layers or a part of an expert, or are not read. A tensor goes where the
    first pattern that is found in its name says (src/llama-model-loader.cpp, std::regex_search).
    """
    patterns = []
    for rule in rules.split(","):
        pattern, _, buffer = rule.rpartition("=")
        if buffer != "CPU" or not _is_tried(pattern):
            return None
        patterns.append(re.compile(pattern))

    def moved(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    def layer_moved(layer: int) -> bool | None:
        found = {moved(f"blk.{layer}.{matrix}.weight") for matrix in MATRICES}
        others = any(moved(f"blk.{layer}.{other}.weight") for other in OTHERS)
        return None if len(found) > 1 or others else found.pop()

    layers = [layer_moved(layer) for layer in range(LAYERS)]
    count = layers.count(True)
    prefix = None not in layers and all(layers[:count])
    return count if prefix and count and not any(map(moved, ENDS)) else None


def _is_tried(pattern: str) -> bool:
    if (
        not 0 < len(pattern) <= LONGEST
        or not _PLAIN.fullmatch(pattern)
        or len(_WILD.findall(pattern)) > WILD_CARDS
    ):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
