"""Models whose name no part of a path holds whole: the family in one part and the size in another, or beside
the words of a run.
"""

from __future__ import annotations

import pytest

from memsheet.questions.named_models import likely_of_path

PATHS = {
    "../hf_llama2_models/7B": "llama-2-7b",
    "/data/llama-3/8B": "llama-3-8b",
    "/models/qwen2.5/7b-instruct": "qwen2.5-7b",
    "/base_models/L3.1-70B-v3.9-nc-2e-6-2_ep-fixed/": "llama-3.1-70b",
    "/path/to/DeepSeek-V3.1-source": "deepseek-v3",
    "/runs/olmo3-32b-instruct-SFT-1114-fix-8e-5-seed_33333/step8144": "olmo-3-32b",
    "/runs/olmo3/32b-merge-configs/checkpoints/32b-1e-4-5e-5/": "olmo-3-32b",
    "yoshitomo-matsubara/bert-base-uncased-mnli": "bert-base",
    "/nfs/someone/hf_llama2_models/70B": "llama-2-70b",
    "../hf_llama_models/7B": None,
    "/models/qwen/7b": None,
    "/models/qwen3-vl/8b": None,
    "/models/qwen2.5/7b-vl": None,
    "/models/qwen2.5-math/7b": None,
    "/runs/tulu_3_long_finetune_qwen_7b_reg": None,
    "/runs/olmo25_7b_lc_64k_6T": None,
    "/x/mistral/7b-v3": None,
    "/model": None,
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_tells_family_and_size(path: str) -> None:
    parts = [part for part in reversed(path.strip("/").split("/")) if part]
    assert likely_of_path(parts) == PATHS[path]
