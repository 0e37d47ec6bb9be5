"""What a plan says of some layers alone holds for stages that have none of them."""

from __future__ import annotations

import memsheet


def test_stages_without_dense_layers_are_accounted_where_dense_layers_are_recomputed() -> None:
    """DeepSeek-V3 has three, all in the first stage."""
    asked = {
        "gpus": "256xH100-80GB", "engine": "megatron", "pp": 4, "ep": 64, "seq_len": 4096, "global_batch": 2048,
        "layers_per_stage": [16, 15, 15, 15], "recompute": "selective", "fix": False,
    }  # fmt: skip
    sheets = memsheet.train("deepseek-v3", **asked, recompute_modules=["mlp"]).sheets
    plain = memsheet.train("deepseek-v3", **asked, recompute_modules=["core_attn"]).sheets
    assert [sheet.stage for sheet in sheets] == [0, 1, 2, 3]
    assert sheets[0].peak.value < plain[0].peak.value
