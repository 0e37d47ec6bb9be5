"""Scripts that generate with transformers: pipelines, sequences at once, prompts that nobody says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.file_format import UNSET
from memsheet.questions.recognised_files import PARSERS

HEAD = "import torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, pipeline\n"
LOADED = """tok = AutoTokenizer.from_pretrained("llama-3.1-8b")
model = AutoModelForCausalLM.from_pretrained("llama-3.1-8b", torch_dtype=torch.bfloat16)
"""
PIPE = 'pipe = pipeline("text-generation", model="llama-3.1-8b", torch_dtype=torch.bfloat16, MORE)\n'
ASKED = 'out = pipe(["a"], max_new_tokens=64, batch_size=8)\n'
ROWS = 'x = tok(["a", "b", "c"], return_tensors="pt", padding=True, max_length=512, truncation=True)\n'
SEQUENCES, PROMPT, ANSWER = "serving.max_sequences", "serving.prompt_tokens", "serving.output_tokens"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            PIPE.replace("MORE", "") + ASKED,
            {SEQUENCES: 8, ANSWER: 64, PROMPT: 1, "precision.parameters": "bf16"},
        ),
        (
            PIPE.replace("MORE", "model_kwargs={'load_in_8bit': True}") + ASKED,
            {"quantization.weights": "int8"},
        ),
        (
            LOADED + ROWS + "model.generate(**x, max_new_tokens=100)\n",
            {SEQUENCES: 3, PROMPT: 512, ANSWER: 100},
        ),
        (LOADED + ROWS + "model.generate(**x, max_new_tokens=100, num_beams=4)\n", {SEQUENCES: 12}),
    ],
)
def test_sizes_of_a_generation(body: str, said: dict[str, Any]) -> None:
    found = read_text("run.py", HEAD + body, PARSERS)
    assert found.request["task"] == "infer"
    assert {key: found.request.get(key) for key in said} == said


def test_texts_that_are_not_told_leave_the_batch_open() -> None:
    found = read_text(
        "run.py", HEAD + LOADED + ROWS.replace('["a", "b", "c"]', "rows()") + "model.generate(**x)\n", PARSERS
    )
    assert ("loop.batch", UNSET) in found.unmodelled


@pytest.mark.parametrize(
    ("gpus", "prompt", "result"),
    [("1x24GB", None, "uncertain"), ("1xT4", None, "does_not_fit"), ("1x24GB", 512, "fits"), ("1x24GB", 131072, "does_not_fit")],
)  # fmt: skip
def test_prompts_that_nobody_says_never_fail_a_script(
    gpus: str, prompt: int | None, result: str, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(HEAD + PIPE.replace("MORE", "") + ASKED)
    more = {} if prompt is None else {"prompt_tokens": prompt}
    found = memsheet.check(tmp_path / "run.py", gpus=gpus, **more)  # type: ignore[arg-type]
    assert found.result is not None
    assert found.result.value == result


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("for i in range(0, len(qs), BS):\n    x = tok(qs[i:i+BS], padding=True, max_length=512)\n", 32),
        (
            "for i in range(9):\n    c = qs[i : min(i + BS, 9)]\n    x = tok([q for q in c], padding=1)\n",
            32,
        ),
        ("x = tok(['a'] * 64, padding=True)\n", 64),
        ("b = ['a', 'b'] * BS\nx = tok(b, padding=True)\n", 64),
        ("x = tok(qs[:8], padding=True)\n", 8),
        ("d = DataLoader(qs, batch_size=128, collate_fn=lambda b: tok([q for q in b], padding=True))\n", 128),
    ],
)
def test_sequences_at_once_of_slices_and_loaders(body: str, count: int) -> None:
    more = (
        "BS = 32\nqs = open('q').readlines()\n"
        + body
        + "model.generate(**x, max_new_tokens=9, num_beams=2)\n"
    )
    found = read_text("run.py", HEAD + LOADED + more, PARSERS)
    assert found.request[SEQUENCES] == 2 * count
    assert ("loop.batch", UNSET) not in found.unmodelled


def test_open_batches_have_no_most(tmp_path: Path) -> None:
    body = ROWS.replace('["a", "b", "c"]', "rows()") + "model.generate(**x)\n"
    (tmp_path / "run.py").write_text(HEAD + LOADED + body)
    verdict = memsheet.check(tmp_path / "run.py", gpus="1x24GB").answer.verdict  # type: ignore[union-attr]
    assert verdict is not None
    assert verdict.no_most


FORWARD = (
    'x = tok("a", return_tensors="pt", max_length=512, truncation=True)\n'
    "with torch.no_grad():\n    y = model(**x)\n"
)


def test_a_forward_pass_that_is_called_itself_is_a_prompt_and_never_sure(tmp_path: Path) -> None:
    """It makes outputs of every token, where a generation makes the last one's alone."""
    (tmp_path / "run.py").write_text(HEAD + LOADED + FORWARD)
    found = memsheet.check(tmp_path / "run.py", gpus="1xH100-80GB")
    assert found.answer is not None, found.why_not
    assert found.result is not None
    assert found.result.value == "uncertain"
    (moved,) = (one for one in found.moved if one.at == "logits")
    assert (moved.low_bytes, moved.high_bytes) == (0, 512 * 128256 * 2 * 4)


@pytest.mark.parametrize("trains", ["trainer = OurTrainer(model)\n", "train_all(model)\n"])
def test_a_forward_pass_beside_a_training_is_none_of_a_generation(trains: str) -> None:
    with pytest.raises(InputError, match="not recognised"):
        read_text("run.py", HEAD + LOADED + FORWARD + trains, PARSERS)


def test_a_models_own_chat_generates() -> None:
    body = 'answer, history = model.chat(tok, "a", history=None)\n'
    found = read_text("run.py", HEAD + LOADED + body, PARSERS)
    assert (found.request["task"], found.request["precision.parameters"]) == ("infer", "bf16")


@pytest.mark.parametrize(
    ("script", "task"),
    [("-m llava.eval.model_vqa", "infer"), ("fastchat/serve/model_worker.py", "infer"), ("tools/look.py", None)],
)  # fmt: skip
def test_a_script_nobody_has_asks_its_model_by_the_folder_that_it_lies_in(
    script: str, task: str | None, tmp_path: Path
) -> None:
    job = tmp_path / "run.sh"
    job.write_text(f"python {script} --model-path Qwen/Qwen2.5-7B-Instruct\n")
    if task is None:
        with pytest.raises(InputError, match="is not there"):
            memsheet.check(job, gpus="1xH100-80GB")
        return
    found = memsheet.check(job, gpus="1xH100-80GB")
    assert found.answer is not None, found.why_not
    assert (found.answer.plan.engine, found.result and found.result.value) == ("transformers", "uncertain")
