"""What a program that makes vLLM's engine takes by itself, the engine that a variable chooses, drafts of
older flags, and what Slurm gives a job.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.exchange.file_texts import read_text
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
MADE = "from vllm import LLM\nllm = LLM(model='Qwen/Qwen3-8B'%s)\n"


def request_of(text: str, name: str = "serve.sh") -> dict[str, Any]:
    return dict(read_text(name, text, PARSERS).request)


def batched(gpus: str, **options: Any) -> int:
    answer = memsheet.infer("qwen3-8b", gpus=gpus, engine="vllm", max_model_len=8192, **options)
    return int(answer.plan.serving.max_batched_tokens or 0)


def test_a_script_that_makes_an_engine_is_no_server() -> None:
    assert request_of(MADE % "", "run.py")["serving.offline_inference"] is True
    assert request_of(MADE % ", max_num_batched_tokens=4096", "run.py")["serving.max_batched_tokens"] == 4096
    assert "serving.offline_inference" not in request_of("vllm serve Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("gpus", "server", "offline"), [("1xH100-80GB", 8192, 16384), ("1xA100-80GB", 2048, 8192)]
)
def test_its_batch_is_larger(gpus: str, server: int, offline: int) -> None:
    """UsageContext.OPENAI_API_SERVER and LLM_CLASS (vLLM engine/arg_utils.py, get_batch_defaults)."""
    assert batched(gpus) == server
    assert batched(gpus, offline_inference=True) == offline


def test_the_older_engine_is_no_sure_verdict() -> None:
    found = read_text("serve.sh", "VLLM_USE_V1=0 vllm serve Qwen/Qwen3-8B", PARSERS)
    assert dict(found.unmodelled)["VLLM_USE_V1"] == 0
    assert not read_text("serve.sh", "VLLM_USE_V1=1 vllm serve Qwen/Qwen3-8B", PARSERS).unmodelled


def test_older_flags_of_a_draft_are_read() -> None:
    older = "vllm serve Qwen/Qwen3-8B --speculative-model Qwen/Qwen3-0.6B --num-speculative-tokens 5"
    parts = '{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5}'
    newer = f"vllm serve Qwen/Qwen3-8B --speculative-config '{parts}'"
    assert request_of(older) == request_of(newer)
    by_itself = request_of(older.replace("Qwen/Qwen3-0.6B", "[ngram]"))
    assert by_itself["speculative.method"] == "ngram"


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\n#SBATCH --gres=gpu:a100:4\nvllm serve Qwen/Qwen3-8B -tp $SLURM_GPUS_ON_NODE\n",
        "N=4\nsrun --gres=gpu:$N vllm serve Qwen/Qwen3-8B -tp $SLURM_GPUS_ON_NODE\n",
        "N=4\nsrun --gpus-per-node=$N vllm serve Qwen/Qwen3-8B -tp ${SLURM_GPUS_ON_NODE}\n",
    ],
)
def test_slurms_variable_has_the_cards_that_it_gives(text: str) -> None:
    assert request_of(text)["mesh.tp"] == 4


@pytest.mark.parametrize(("release", "streamed"), [("0.8.5", False), ("0.11.0", False), ("0.16.0", True)])
def test_older_releases_quantize_once_all_weights_are_loaded(release: str, streamed: bool) -> None:
    """vLLM docs/features/quantization/fp8.md: at the original precision, until pull request 31914."""
    shared = {"gpus": "1xH200", "engine": "vllm", "engine_version": release, "max_model_len": 8192}
    stored = memsheet.infer("llama-3.1-70b", quantize="fp8", **shared)
    loading = next((item for item in stored.sheets[0].items if item.path == "unquantized"), None)
    assert (loading is None) == streamed
    if loading is not None:
        linear = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)  # of its config.json
        assert loading.largest.low == linear
        assert linear < loading.largest.high < linear * 1.01


BESIDE = {
    "judge = RewardModel('org/Judge-8B')\n": "org/Judge-8B", "path = 'org/PRM-8B-Data'\nprm = Scorer(path)\n": "org/PRM-8B-Data",
    "m = AutoModelForSequenceClassification.from_pretrained(path)\n": "a model of AutoModelForSequenceClassification",
    "m = AutoModel.from_pretrained('org/e-1.5b')\n": "org/e-1.5b",
}  # fmt: skip
NONE_BESIDE = (
    "t = AutoTokenizer.from_pretrained('org/Other-8B')\n", "c = OpenAI(model='org/Judge-8B')\n", "m = AutoModel.from_pretrained('org/e-1.5b', device_map='cpu')\n",
    "w = Wrapper('Qwen/Qwen3-8B')\n", "p = SamplingParams(0.0)\n",
)  # fmt: skip


@pytest.mark.parametrize("more", BESIDE)
def test_a_model_that_a_script_loads_beside_its_engine_is_told(more: str) -> None:
    told = dict(read_text("run.py", MADE % "" + more, PARSERS).unmodelled)
    assert told["models_beside"] == f"{BESIDE[more]}, loaded on the same cards"


@pytest.mark.parametrize("more", NONE_BESIDE)
def test_what_loads_no_model_on_its_cards_is_none_beside(more: str) -> None:
    assert "models_beside" not in dict(read_text("run.py", MADE % "" + more, PARSERS).unmodelled)
