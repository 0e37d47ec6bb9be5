"""The layers that an adapter stands beside where nobody says."""

import pytest

from memsheet.plan.layers import linear_names
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

SMALL = {"num_hidden_layers": 2, "head_dim": 64, "vocab_size": 1000}


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", {"q_proj", "v_proj"}),
        ("xlm-roberta", {"query", "value"}),
        ("olmo3", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("minimax_m2", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("qwen3_5_text", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("afmoe", {"q_proj", "k_proj", "v_proj", "gate_proj", "o_proj"}),
    ],
)
def test_pefts_default_or_attentions_own_layers(family: str, targets: set[str]) -> None:
    model = read_hf_config({"model_type": family, **SMALL, "num_hidden_layers": 4})
    plan = resolve_request({"seq_len": 128, "adapter.rank": 8}, model).plan
    assert plan.adapter is not None
    assert set(plan.adapter.targets) == targets
    assert targets <= linear_names(model)
