"""TRL's trainers that are taught on answers of the moment, and vLLM beside those that sometimes generate."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from job_files import job_document, phases_by_name, role_bytes
from memsheet.report.shared.checked import Checked

MODEL = "Qwen/Qwen3-0.6B"
SCRIPT = """
from trl.experimental import {0}Config, {0}Trainer
args = {0}Config(output_dir="o", per_device_train_batch_size=4, max_completion_length=256, max_prompt_length=512, {1})
{0}Trainer(model="{2}", {3} args=args, train_dataset=data).train()
"""
LORA = 'peft_config=LoraConfig(r=8, target_modules="all-linear"),'


def student(folder: Path, method: str, said: str = "", given: str = "") -> Checked:
    file = folder / "run.py"
    text = SCRIPT.format(method, said, MODEL, given)
    file.write_text(f"from peft import LoraConfig\n{text}" if "Lora" in given else text)
    return memsheet.check(file, gpus="1xA100-80GB")


@pytest.mark.parametrize(("method", "copied"), [("SDPO", True), ("SDFT", True), ("SSD", False)])
def test_a_copy_teaches_where_its_weights_are_others(tmp_path: Path, method: str, *, copied: bool) -> None:
    """An average of them or the first, in place of which adapters are switched; never those as they are."""
    assert ("teacher" in job_document(student(tmp_path, method))["roles"]) is copied
    assert "teacher" not in job_document(student(tmp_path, method, given=LORA))["roles"]
    if copied:
        live = student(tmp_path, method, 'teacher_model_kind="live"')
        assert "teacher" not in job_document(live)["roles"]


def test_what_is_compared_says_how_many_logits_there_are(tmp_path: Path) -> None:
    held = [
        role_bytes(
            student(tmp_path, "SDFT", f'distillation_mode="{mode}", distillation_alpha={alpha}, steps_per_generation=1'),
            "update_actor/loss", "actor", "temporaries",
        )
        for mode, alpha in (("sampled_token", 1.0), ("topk_logits", 1.0), ("full_logits", 1.0), ("full_logits", 0.5))
    ]  # fmt: skip
    assert held == sorted(set(held))


def test_a_longer_prompt_teaches(tmp_path: Path) -> None:
    longest = phases_by_name(student(tmp_path, "SDPO", "max_reprompt_len=4096"))["teacher"]["plan"]["seq_len"]
    assert longest == 4096 + 256


def test_old_log_probabilities_are_made_where_a_generation_serves_several_updates(tmp_path: Path) -> None:
    assert "old_log_prob" not in phases_by_name(student(tmp_path, "SDPO"))
    assert "old_log_prob" in phases_by_name(student(tmp_path, "SDPO", "num_iterations=2"))
    assert "old_log_prob" not in phases_by_name(student(tmp_path, "SSD", "num_iterations=2"))


def test_a_larger_model_teaches_what_learns_by_two_passes(tmp_path: Path) -> None:
    found = student(tmp_path, "MiniLLM", given='teacher_model="Qwen/Qwen3-1.7B",')
    roles = job_document(found)["roles"]
    assert roles["teacher"]["model"] == "Qwen/Qwen3-1.7B"
    assert roles["actor"]["plan"]["microbatch"] == 8


def test_values_of_the_reference_are_of_several_answers_at_once(tmp_path: Path) -> None:
    one, eight = (
        job_document(student(tmp_path, "A2PO", f"num_value_samples={count}"))["roles"] for count in (1, 8)
    )
    assert set(one) == {"actor", "reference", "rollout"}
    sequences = [roles["rollout"]["plan"]["serving"]["max_sequences"] for roles in (one, eight)]
    assert sequences == [4, 32]


COLOCATED = """
from trl.experimental import {0}Config, {0}Trainer
args = {0}Config(output_dir="o", per_device_train_batch_size=4, use_vllm=True, vllm_mode="colocate", {1})
{0}Trainer(model="{2}", {3} args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize("method", ["OnlineDPO", "XPO", "NashMD", "GOLD"])
def test_vllm_beside_the_trainer_has_its_share(tmp_path: Path, method: str) -> None:
    given = 'teacher_model="Qwen/Qwen3-1.7B",' if method == "GOLD" else 'reward_funcs=["x"],'
    file = tmp_path / "run.py"
    for sleep in (False, True):
        said = f"vllm_gpu_memory_utilization=0.4, vllm_enable_sleep_mode={sleep}"
        file.write_text(COLOCATED.format(method, said, MODEL, given))
        found = memsheet.check(file, gpus="1xA100-80GB")
        assert job_document(found)["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.4
        assert bool(role_bytes(found, "update_actor/loss", "rollout", "kv_cache")) is not sleep
        assert role_bytes(found, "gen/decode", "rollout", "kv_cache")


def test_ligers_loss_has_its_own_gradients(tmp_path: Path) -> None:
    for method, given in (("GRPO", "reward_funcs=f,"), ("GKD", 'teacher_model="Qwen/Qwen3-1.7B",')):
        text = SCRIPT.format(method, "use_liger_kernel=True", MODEL, given).replace("trl.experimental", "trl")
        if method == "GKD":
            text = text.replace("max_completion_length=256, max_prompt_length=512, ", "")
        (tmp_path / "run.py").write_text(text)
        found = memsheet.check(tmp_path / "run.py", gpus="1xA100-80GB")
        last = phases_by_name(found)["update_actor"]
        assert "logits" not in last
        assert [one["path"] for one in last["items"]] == ["liger"]


def test_answers_that_may_be_shorter_stop_nobody(tmp_path: Path) -> None:
    """Neither what is learnt from nor the cache of a model that generates itself is as long as it may be."""
    found = student(tmp_path, "SSD", "gradient_accumulation_steps=64")
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result.name == "FITS"
    (tmp_path / "run.py").write_text((tmp_path / "run.py").read_text().replace("length=256", "length=65536"))
    long = memsheet.check(tmp_path / "run.py", gpus="1xA100-80GB")
    assert long.answer is not None
    assert long.answer.verdict is not None
    assert long.answer.verdict.result.name == "UNCERTAIN"
    assert "may have at the most" in long.doubt


def test_a_head_that_labels_steps_stands_alone(tmp_path: Path) -> None:
    text = SCRIPT.format("PRM", "", MODEL, "").replace(
        "max_completion_length=256, max_prompt_length=512, ", "max_length=512"
    )
    (tmp_path / "run.py").write_text(text)
    found = memsheet.check(tmp_path / "run.py", gpus="1xA100-80GB")
    assert found.answer is not None
    assert found.answer.model.head.kind == "none"
    assert "PRM" not in found.doubt


GRPO = """
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="o", per_device_train_batch_size=8, max_completion_length=1024, max_prompt_length=512,
                  use_vllm=True, vllm_gpu_memory_utilization=0.9, {0})
GRPOTrainer(model="Qwen/Qwen2.5-1.5B-Instruct", reward_funcs=f, args=args, train_dataset=data).train()
"""


def test_a_server_that_may_be_on_other_cards_stops_nobody(tmp_path: Path) -> None:
    """Where no release is said: it has been on a card of its own by itself, and is beside the trainer now."""
    results = []
    for said in ("", 'vllm_mode="colocate"'):
        (tmp_path / "run.py").write_text(GRPO.format(said))
        found = memsheet.check(tmp_path / "run.py", gpus="1xA100-80GB").answer
        assert found is not None
        assert found.verdict is not None
        results.append(found.verdict.result.name)
    assert results == ["UNCERTAIN", "DOES_NOT_FIT"]


def test_a_device_for_vllm_is_a_card_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(GRPO.format('vllm_device="auto"'))
    found = memsheet.check(tmp_path / "run.py", gpus="1xA100-80GB")
    assert set(job_document(found)["roles"]) == {"actor"}
    assert "vllm_mode" not in found.doubt
