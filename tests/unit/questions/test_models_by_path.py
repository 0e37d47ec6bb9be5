"""Models whose name no part of a path holds whole: the family in one part and the size in another, or beside
the words of a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.questions.named_models import likely_of_path
from memsheet.report.shared.checked import Checked

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


def served(folder: Path, command: str, gpus: str) -> Checked:
    (folder / "serve.sh").write_text(f"{command}\n")
    return memsheet.check(folder / "serve.sh", gpus=gpus)


@pytest.mark.parametrize("name", ["llama-3.3-70b", "our-70b"])
@pytest.mark.parametrize("server", ["vllm serve /models/{} --max-model-len 4096", "python -m sglang.launch_server --model-path /models/{} --context-length 4096"])  # fmt: skip
def test_a_folder_that_nobody_read_may_be_stored_in_few_bits(name: str, server: str, tmp_path: Path) -> None:
    """Whatever its name says: what denies it denies it in four bits, too."""
    assert served(tmp_path, server.format(name), "1xH100-80GB").result is Result.UNCERTAIN
    assert served(tmp_path, server.format(name), "1xRTX4090").result is Result.DOES_NOT_FIT
    known = served(tmp_path, server.replace("/models/{}", "meta-llama/Llama-3.1-70B-Instruct"), "1xH100-80GB")
    assert known.result is Result.DOES_NOT_FIT


@pytest.mark.parametrize(("word", "bits"), [("modelopt_fp4", "nvfp4"), ("fbgemm_fp8", "fp8")])
@pytest.mark.parametrize("name", ["llama-3.3-70b", "our-70b"])
def test_a_command_states_the_bits_of_a_folder(name: str, word: str, bits: str, tmp_path: Path) -> None:
    found = served(
        tmp_path, f"vllm serve /models/{name} --max-model-len 4096 --quantization {word}", "2xH100-80GB"
    )
    assert found.answer is not None
    assert found.answer.plan.quantization is not None
    assert found.answer.plan.quantization.weights is not None
    assert found.answer.plan.quantization.weights.name.startswith(bits)
    assert found.result is not Result.DOES_NOT_FIT


def test_a_size_says_nothing_of_a_length(tmp_path: Path) -> None:
    server = "python -m sglang.launch_server --model-path /models/our-9b --context-length 1048576"
    found = served(tmp_path, server, "8xH200")
    assert found.answer is not None, found.why_not
    assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize("path", ["D:\\\\models\\\\Qwen3-1.7B", "/data/models/Qwen3-1.7B"])
def test_a_folder_is_of_the_model_that_it_is_called_by_on_any_system(path: str, tmp_path: Path) -> None:
    text = "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    text += f'model = AutoModelForCausalLM.from_pretrained("{path}", torch_dtype="bfloat16")\n'
    text += 'Trainer(model, TrainingArguments("o", bf16=True), train_dataset=rows).train()\n'
    (tmp_path / "train.py").write_text(text)
    found = memsheet.check(tmp_path / "train.py", seq_len=64)
    assert found.answer is not None
    assert found.answer.model.name == "qwen3-1.7b"
