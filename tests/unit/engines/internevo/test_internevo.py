"""What InternEvo is modelled for: its own layers in one stack."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.engines.internevo.layers import internevo_problems
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "tie_word_embeddings": False,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "vocab_size": 256, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "refused"),
    [(LLAMA, False), (T5, True), ({**LLAMA, "num_key_value_heads": 2}, True)],
)
def test_layers_of_one_stack_and_as_many_heads_of_keys_are_its_own(
    config: dict[str, Any], refused: bool
) -> None:
    plan = resolve_request({"engine": "internevo", "task": "train", "mesh.dp_shard": 8}, None).plan
    found = {problem.field for problem in internevo_problems(read_hf_config(config, name="m"), plan)}
    assert ("model" in found) is refused
