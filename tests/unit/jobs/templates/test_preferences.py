"""Jobs that train on preferences, as three programs' files say them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.exchange.shared.preference_methods import preferences_of
from memsheet.jobs.templates.preferences import PROGRAMS, preference_document
from memsheet.report.shared.checked import Checked

MODEL, ROWS, LENGTH = "Qwen/Qwen2.5-0.5B-Instruct", 2, 1024
TRL = f"""
model_name_or_path: {MODEL}
dataset_name: x
max_length: {LENGTH}
per_device_train_batch_size: {ROWS}
"""
PLAN: Mapping[str, Any] = {
    "task": "train",
    "engine": "transformers",
    "microbatch": 4,
    "seq_len": LENGTH,
    "loss": "plain",
}
LOSS = memsheet.Instant("update_actor/loss")


def checked(folder: Path, text: str, *, name: str = "dpo.yaml", gpus: str = "8xA100-80GB") -> Checked:
    (folder / name).write_text(text)
    return memsheet.check(folder / name, gpus=gpus)


def told(found: Checked) -> memsheet.Answer:
    assert found.answer is not None
    assert found.answer.job is not None
    return found.answer


@pytest.mark.parametrize(
    "key", ["beta: 0.1", "max_prompt_length: 512", "desirable_weight: 1.0", "num_generations: 4"]
)
def test_a_recipe_may_leave_its_model_to_the_command(key: str, tmp_path: Path) -> None:
    """What it keeps beside the one that trains is the same, whoever names it."""
    text = f"{TRL}{key}\n"
    (tmp_path / "config.yaml").write_text(text)
    named = memsheet.check(tmp_path / "config.yaml", gpus="8xA100-80GB")
    (tmp_path / "config.yaml").write_text(text.replace(f"model_name_or_path: {MODEL}\n", ""))
    left = memsheet.check(tmp_path / "config.yaml", gpus="8xA100-80GB", model=MODEL)
    assert (told(left).job or {})["roles"].keys() == (told(named).job or {})["roles"].keys()
    assert told(left).verdict == told(named).verdict


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("dpo.yaml", "DPO"), ("qwen_dpo_7b.yml", "DPO"), ("orpo.yaml", "ORPO"), ("zephyr-kto.yaml", "KTO"),
        ("config.yaml", None), ("sft_before_dpo.yaml", None), ("dpo_or_orpo_of_kto.yaml", "DPO"), ("my_dpo_or_kto.yaml", None),
    ],
)  # fmt: skip
def test_a_method_that_the_keys_leave_open_is_the_one_in_the_file_s_name(
    name: str, method: str | None, tmp_path: Path
) -> None:
    """Whatever of DPO's keys that others have, too, it has."""
    for keys in ("beta: 0.1\n", ""):
        text = f"{TRL}{keys}".replace(MODEL, "Qwen/Qwen2.5-7B-Instruct")
        found = checked(tmp_path, text, name=name)
        if method:
            assert f"it trains by {method}, as the file's name says" in told(found).notes
            assert ("reference" in (told(found).job or {})["roles"]) is (method in ("DPO", "KTO"))
        else:
            assert ("which method trains is not said" in found.doubt) is bool(keys)


def test_a_name_says_nothing_of_what_the_keys_say(tmp_path: Path) -> None:
    alone = checked(tmp_path, f"{TRL}completion_only_loss: true\n", name="dpo.yaml")
    assert alone.answer is not None
    assert alone.answer.job is None
    paired = checked(tmp_path, f"{TRL}desirable_weight: 1.0\n", name="dpo.yaml")
    assert (told(paired).job or {})["name"] == "trl-kto"


def rows_of(answer: memsheet.Answer, *, without: tuple[str, ...] = ()) -> dict[Any, Any]:
    return {
        (item.path, item.component, when): size
        for item in answer.sheets[0].items
        for when, size in item.at.items()
        if not (without and item.path.startswith(without)) and item.component.value != "allocator_slack"
    }


def test_probabilities_made_before_remove_exactly_the_reference(tmp_path: Path) -> None:
    """And its pass, what waits for it, and what an entropy takes beside its logits: without them another
    moment is the largest.
    """
    beside = told(checked(tmp_path, f"{TRL}beta: 0.1\n"))
    before = told(checked(tmp_path, f"{TRL}beta: 0.1\nprecompute_ref_log_probs: true\n"))
    assert [list(one.job["roles"]) for one in (beside, before) if one.job] == [
        ["actor", "reference"],
        ["actor"],
    ]
    passing = ("reference/", "actor/reference_pass", "actor/entropy", "actor/waiting_logits")
    assert rows_of(before) == rows_of(beside, without=passing)


def test_together_is_at_least_each_alone(tmp_path: Path) -> None:
    job = told(checked(tmp_path, f"{TRL}beta: 0.1\n"))
    assert job.job is not None
    document = {**job.job, "gpus": "8xA100-80GB"}
    for name in ("actor", "reference"):
        phases = [{**document["phases"][0], "active": name}] if name == "actor" else [{"name": "rest"}]
        alone = memsheet.job({**document, "roles": {name: document["roles"][name]}, "phases": phases})
        for end in ("low", "value", "high"):
            assert getattr(job.sheets[0].device, end) >= getattr(alone.sheets[0].device, end)


def test_more_cards_need_no_more_of_each(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_batch_size": "auto"}'
    )
    needs = [
        told(checked(tmp_path, f"{TRL}beta: 0.1\ndeepspeed: ds.json\n", gpus=f"{count}xA100-80GB"))
        .sheets[0]
        .device.value
        for count in (2, 4, 8)
    ]
    assert needs == sorted(needs, reverse=True)


@pytest.mark.parametrize("method", ["dpo", "kto", "orpo", "simpo"])
def test_every_program_has_logits_of_all_rows(method: str) -> None:
    found = preferences_of(method)
    assert found is not None
    for program in PROGRAMS:
        made = preference_document(program, found, PLAN, MODEL)
        assert made is not None
        low, value, high = made["phases"][0]["logits"]["bytes"]
        assert 0 < low <= value <= high
        assert ("reference" in made["roles"]) == found.reference


def test_adapters_that_are_switched_off_are_the_reference() -> None:
    found = preferences_of("dpo")
    assert found is not None
    made = preference_document("axolotl", found, {**PLAN, "adapter": {"kind": "lora", "rank": 8}}, MODEL)
    assert made is not None
    assert list(made["roles"]) == ["actor"]


def test_a_fused_loss_leaves_the_mismatched_answers_whole() -> None:
    pairs, marked = preferences_of("dpo"), preferences_of("kto")
    assert pairs is not None
    assert marked is not None
    whole, none = (preference_document("trl", one, PLAN, MODEL, fused=True) for one in (marked, pairs))
    assert whole is not None
    assert none is not None
    assert whole["phases"][0]["logits"]["bytes"] == [2, 6, 6]
    assert "logits" not in none["phases"][0]


def test_a_reward_model_has_pairs_and_no_vocabulary(tmp_path: Path) -> None:
    """The sheet is all of it."""
    said = f"--model_name_or_path {MODEL} --per_device_train_batch_size {ROWS} --max_length {LENGTH}"
    script = f"trl reward {said} --dataset_name x\n"
    found = checked(tmp_path, script, name="reward.sh")
    assert found.answer is not None
    assert found.answer.model.head.kind == "none"
    assert found.answer.plan.workload.microbatch == 2 * ROWS  # type: ignore[union-attr]
    assert found.result is memsheet.Result.FITS


def test_the_reward_model_of_another_program_makes_logits_that_it_only_reads(tmp_path: Path) -> None:
    said = f"model_name_or_path: {MODEL}\nper_device_train_batch_size: {ROWS}\ncutoff_len: {LENGTH}\n"
    text = f"{said}stage: rm\nfinetuning_type: lora\ntemplate: qwen\nbf16: true\n"
    answer = told(checked(tmp_path, text, name="rm.yaml"))
    (logits,) = (item for item in answer.sheets[0].items if item.path == "actor/logits")
    assert logits.at[LOSS].value == 6 * 2 * ROWS * LENGTH * answer.model.vocab


def test_a_script_that_gives_a_model_may_have_its_reference_in_fp32(tmp_path: Path) -> None:
    text = f"""
from trl import DPOConfig, DPOTrainer
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("{MODEL}", torch_dtype="bfloat16")
args = DPOConfig(output_dir="o", per_device_train_batch_size={ROWS}, max_length={LENGTH})
DPOTrainer(model=model, args=args, train_dataset=data).train()
"""
    answer = told(checked(tmp_path, text, name="dpo.py"))
    (more,) = (item for item in answer.sheets[0].items if item.path == "actor/reference_in_fp32")
    assert more.at[LOSS].low == 0 < more.at[LOSS].high
    given = told(
        checked(tmp_path, text.replace("model=model,", "model=model, ref_model=other,"), name="dpo.py")
    )
    assert not [item for item in given.sheets[0].items if item.path == "actor/reference_in_fp32"]


FACTORY_PPO = f"""
model_name_or_path: {MODEL}
reward_model: {MODEL}
stage: ppo
do_train: true
dataset: identity
template: qwen
cutoff_len: 512
max_new_tokens: 256
output_dir: out
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
"""
AXOLOTL_GRPO = f"""
base_model: {MODEL}
rl: grpo
trl: {{beta: 0.01, use_vllm: true, vllm_mode: colocate, max_completion_length: 256, num_generations: 4}}
vllm: {{gpu_memory_utilization: 0.3}}
sequence_len: 1024
micro_batch_size: 4
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: true
gradient_checkpointing: true
datasets: [{{path: openai/gsm8k}}]
"""


def test_a_policy_with_values_its_reference_and_its_reward(tmp_path: Path) -> None:
    full = told(
        checked(
            tmp_path, f"{FACTORY_PPO}finetuning_type: full\nreward_model_type: full\n", gpus="1xA100-80GB"
        )
    )
    lora = checked(tmp_path, f"{FACTORY_PPO}finetuning_type: lora\nlora_target: all\n", gpus="1xA100-80GB")
    assert full.job is not None
    assert list(full.job["roles"]) == ["actor", "reference", "reward"]
    assert [phase["name"] for phase in full.job["phases"]] == [
        "gen",
        "old_log_prob",
        "ref",
        "reward",
        "update_actor",
    ]
    assert list((told(lora).job or {})["roles"]) == ["actor"]
    assert "adapters that reward" in lora.doubt
    assert full.job["roles"]["actor"]["plan"]["seq_len"] == 768


def test_the_words_of_grpo_in_groups_of_their_own(tmp_path: Path) -> None:
    found = told(checked(tmp_path, AXOLOTL_GRPO, name="grpo.yaml", gpus="1xA100-80GB"))
    without = told(
        checked(
            tmp_path, AXOLOTL_GRPO.replace("beta: 0.01", "beta: 0.0"), name="grpo.yaml", gpus="1xA100-80GB"
        )
    )
    assert found.job is not None
    assert found.job["roles"]["rollout"]["plan"]["serving"]["memory_fraction"] == 0.3
    assert list(found.job["roles"]) == ["actor", "reference", "rollout"]
    assert list((without.job or {})["roles"]) == ["actor", "rollout"]
    assert found.sheets[0].device.value >= without.sheets[0].device.value


def logits_of(folder: Path, text: str, name: str = "dpo.yaml") -> tuple[int, int, int]:
    (phase,) = (told(checked(folder, text, name=name, gpus="1xA100-80GB")).job or {})["phases"]
    low, value, high = phase["logits"]["bytes"]
    return low, value, high


@pytest.mark.parametrize(
    ("name", "words", "more"),
    [
        ("dpo.yaml", "beta: 0.1\nuse_weighting: true\n", 4), ("dpo.yaml", "beta: 0.1\nuse_weighting: false\n", 0),
        ("dpo.yaml", "beta: 0.1\nloss_type: sft\n", 2), ("dpo.yaml", "beta: 0.1\nloss_type: [sigmoid, sft]\n", 2),
        ("dpo.yaml", "beta: 0.1\nloss_type: hinge\n", 0), ("cpo.yaml", "cpo_alpha: 0.0\n", -2), ("cpo.yaml", "cpo_alpha: 1.0\n", 0),
    ],
)  # fmt: skip
def test_words_of_a_loss_add_what_it_keeps_of_each_logit(
    name: str, words: str, more: int, tmp_path: Path
) -> None:
    plain = "beta: 0.1\n" if name == "dpo.yaml" else ""
    low, value, high = logits_of(tmp_path, TRL + plain, name)
    own = logits_of(tmp_path, TRL + words, name)
    assert own[:2] == (low, value + more)
    assert own[2] >= high


def entropy_of(folder: Path, words: str) -> int:
    answer = told(checked(folder, f"{TRL}beta: 0.1\n{words}", gpus="1xA100-80GB"))
    return sum(int(item.at[LOSS].value) for item in answer.sheets[0].items if item.path == "actor/entropy")


def test_an_entropy_of_the_moment_stands_beside_the_reference_s_logits(tmp_path: Path) -> None:
    """Of 128 positions, whatever a row has; none where they are read before training."""
    assert entropy_of(tmp_path, "") == 12 * 128 * 151936
    assert entropy_of(tmp_path, "max_length: 16\n") == 12 * 2 * ROWS * 16 * 151936
    assert entropy_of(tmp_path, "precompute_ref_log_probs: true\n") == 0


@pytest.mark.parametrize(
    ("name", "words", "beside"),
    [("dpo.yaml", "", 1), ("kto.yaml", "", 1), ("orpo.yaml", "", 0), ("dpo.yaml", "use_peft: true\n", 1)],
)
def test_logits_wait_while_the_reference_reads(name: str, words: str, beside: int, tmp_path: Path) -> None:
    answer = told(checked(tmp_path, TRL + words, name=name, gpus="1xA100-80GB"))
    rows = ROWS if name == "kto.yaml" else 2 * ROWS
    waiting = [item for item in answer.sheets[0].items if item.path == "actor/waiting_logits"]
    sizes = [int(size.value) for item in waiting for size in item.at.values()]
    assert sizes == [4 * rows * LENGTH * 151936] * beside
