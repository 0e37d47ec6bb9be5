"""Models of which nobody says what length they were made for, or what their cache is kept in: a server of
theirs is no sure stop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.exchange.shared.file_format import Moved
from memsheet.questions.check import check_configuration_files
from memsheet.questions.moved_bytes import with_moved_range


def checked(command: str, folder: Path, gpus: str) -> Any:
    file = folder / "serve.sh"
    file.write_text(command + "\n", encoding="utf-8")
    unsaid = dict.fromkeys(("parameters", "nodes", "per_node", "host_memory", "cluster"))
    return check_configuration_files((str(file),), None, {**unsaid, "gpus": gpus}, {})


def test_a_release_takes_its_own_length_and_not_its_bases(tmp_path: Path) -> None:
    found = checked("vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ", tmp_path, "1xA100-80GB")
    assert found.answer.plan.serving.max_model_len == 32768
    assert found.answer.verdict.result.value == "fits"


@pytest.mark.parametrize(
    "model", ["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "someone/Qwen2.5-Math-7B-Medical-SFT"]
)
def test_a_tuned_model_may_be_longer_than_its_base(model: str, tmp_path: Path) -> None:
    found = checked(f"vllm serve {model} --max-model-len 32768", tmp_path, "1xA100-80GB")
    assert not any(rule.id == "length-beyond-model" for rule, _ in found.mistakes)
    assert not found.why_not
    assert found.answer.verdict.result.value in ("fits", "uncertain")


def test_a_base_is_still_as_long_as_its_own_file_says(tmp_path: Path) -> None:
    found = checked("vllm serve Qwen/Qwen2.5-Math-7B --max-model-len 32768", tmp_path, "1xA100-80GB")
    assert any(rule.id == "length-beyond-model" for rule, _ in found.mistakes)


@pytest.mark.parametrize(("gpus", "result"), [("1xA100-80GB", "uncertain"), ("4xA100-80GB", "fits")])
def test_a_tuned_one_whose_base_does_not_fit_is_not_sure(gpus: str, result: str, tmp_path: Path) -> None:
    command = f"vllm serve open-thoughts/OpenThinker-32B -tp {gpus[0]}"
    found = checked(command, tmp_path, gpus)
    assert found.answer.verdict.result.value == result
    assert ("is not known" in found.doubt) == (result == "uncertain")


def test_a_length_that_the_engine_finds_is_one_that_fits(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len auto\n")
    found = memsheet.check(tmp_path / "a.sh", gpus="1x24GB")
    assert found.answer is not None
    assert (found.answer.serving or {})["short_bytes"].value <= 0
    assert 0 < int(found.answer.plan.serving.max_model_len or 0) < 131072


REPLICAS = """import os, torch
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM
torch.distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", torch_dtype=torch.bfloat16).cuda()
model.gradient_checkpointing_enable()
model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for batch in loader:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("gpus", "sure"), [("8xA100-80GB", True), ("2xRTX4090", True), ("1xRTX4090", True), ("8xH200", False)]
)
def test_no_length_fits_where_the_states_and_their_step_do_not(tmp_path: Path, gpus: str, sure: bool) -> None:
    """A card that is too small for the optimizer's step is, whatever a sequence has; of the shortest it is
    told so, too.
    """
    (tmp_path / "train.py").write_text(REPLICAS)
    unsaid, shortest = (
        memsheet.check(tmp_path / "train.py", gpus=gpus, **said) for said in ({}, {"seq_len": 1})
    )
    for found in (unsaid, shortest):
        assert found.answer is not None
        assert found.answer.verdict is not None
        assert (found.answer.verdict.result is memsheet.Result.DOES_NOT_FIT) is sure, found.doubt
    assert unsaid.answer is not None
    assert shortest.answer is not None
    assert unsaid.answer.verdict is not None
    assert shortest.answer.verdict is not None
    if sure:
        slack = shortest.answer.sheets[0].of(
            memsheet.Component.ALLOCATOR_SLACK, instant=memsheet.Instant.OPTIMIZER_STEP
        )
        assert unsaid.answer.verdict.device.low <= shortest.answer.verdict.device.low + slack.high


# ---- what a cache is kept in -------------------------------------------------------------------------------

NVIDIAS, THEIRS = "nvidia/Llama-3.1-8B-Instruct-FP8", "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8"
LONG = "--max-model-len 100000"


@pytest.mark.parametrize(
    ("command", "gpus", "result"),
    [
        (f"{NVIDIAS} {LONG}", "1xL4", "uncertain"),
        (f"{NVIDIAS} {LONG} --kv-cache-dtype fp8", "1xL4", "fits"),
        (f"{NVIDIAS} {LONG} --kv-cache-dtype bfloat16", "1xL4", "does_not_fit"),
        (f"{NVIDIAS} --max-model-len 8192", "1xL4", "fits"),
        (f"{THEIRS} {LONG}", "1xL4", "does_not_fit"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8 -tp 2", "2xH100-80GB", "does_not_fit"),
    ],
)
def test_a_cache_that_lacks_room_may_be_kept_in_eight_bits(
    command: str, gpus: str, result: str, tmp_path: Path
) -> None:
    """Where a method's checkpoints mostly name that, and only the name of this one is known; not where its
    weights have no room.
    """
    assert checked(f"vllm serve {command}", tmp_path, gpus).answer.verdict.result.value == result


def test_no_length_is_said_to_fit_that_does_not_with_what_files_hold_beside() -> None:
    answer = memsheet.train("llama-3.2-1b", gpus="1xA100-80GB", recompute="full")
    assert answer.cluster is not None
    room, gib = answer.cluster.device.framework_low_bytes, 2**30
    beside = (Moved(at="logits", why="stand twice", low_bytes=30 * gib, high_bytes=60 * gib),)
    told = with_moved_range(answer, answer, beside)
    assert told is not None
    assert told.verdict is not None
    asked = int(answer.plan.training.seq_len or 0)
    for before, after in zip(answer.ladder, told.ladder, strict=True):
        if after.seq_len == asked:
            assert (after.device_bytes, after.result) == (int(told.verdict.device.value), told.verdict.result)
        elif after.result is Result.FITS:
            assert after.seq_len < asked
            assert before.device_bytes + 60 * gib <= room
    assert any(
        before.result is not after.result for before, after in zip(answer.ladder, told.ladder, strict=True)
    )
