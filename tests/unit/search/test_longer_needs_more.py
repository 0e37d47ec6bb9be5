"""Of what serves, nothing is replayed: a longer sequence or prompt leaves less, which is what halving a
bracket of lengths goes by.
"""

from __future__ import annotations

import random
from typing import Any

from laws import every
from memsheet.catalog import find_device, find_model
from memsheet.errors import InputError
from memsheet.plan.device import cluster_of
from memsheet.readers.model import read_model
from memsheet.search.trials import Question, account_trial

MODELS = (
    "llama-3.1-8b",
    "gemma-3-4b",
    "qwen2.5-7b",
    "deepseek-v2-lite",
    "mixtral-8x7b",
    "gpt-oss-20b",
    "phi-3-mini-128k",
    "mistral-7b",
)
CARDS = ("L4", "A100-80GB", "H100-80GB", "RTX4090")


def spare(request: dict[str, Any], name: str, card: str, key: str, value: int) -> int | None:
    cluster = cluster_of(find_device(card), 1)
    question = Question(
        model=read_model(name, catalog=find_model), request={**request, key: value}, cluster=cluster
    )
    try:
        return account_trial(value, question, replays=False).spare_bytes
    except InputError:
        return None


@every("number", range(40))
def test_a_longer_one_never_leaves_more(number: int) -> None:
    luck = random.Random(number)
    name, card = luck.choice(MODELS), luck.choice(CARDS)
    engine, key = luck.choice(
        [
            ("vllm", "serving.max_model_len"),
            ("transformers", "serving.prompt_tokens"),
            ("transformers", "serving.max_model_len"),
        ]
    )
    request: dict[str, Any] = {
        "task": "infer",
        "engine": engine,
        "serving.max_sequences": luck.choice([1, 4, 16]),
    }
    if key == "serving.prompt_tokens":
        request["serving.max_model_len"] = 8192
    lengths = sorted(luck.sample(range(1, 8193) if engine == "transformers" else range(64, 8193, 64), 6))
    left = [found for length in lengths if (found := spare(request, name, card, key, length)) is not None]
    assert len(left) > 1 or name not in ("llama-3.1-8b", "mistral-7b")
    assert left == sorted(left, reverse=True)
