"""What helps a job of which a phase does not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.jobs.shorter import with_so_many_rows
from memsheet.questions.cures_of_jobs import what_helps
from memsheet.questions.job import answer_job
from memsheet.units import format_bytes

CARD = "1xA100-80GB"


def grpo(**options: Any) -> memsheet.Answer:
    return memsheet.job("trl-grpo", model="qwen3-4b", gpus=CARD, **options)


def test_what_fits_needs_no_help() -> None:
    answer = memsheet.job(
        "trl-grpo", model="qwen3-0.6b", gpus=CARD, per_device_train_batch_size=2, num_generations=2
    )
    assert answer.verdict is not None
    assert answer.verdict.result is memsheet.Result.FITS
    assert what_helps(answer, {"gpus": CARD}) == ()


def test_each_change_frees_what_it_says() -> None:
    answer = grpo(max_completion_length=2048)
    helps = {one.kind: one for one in what_helps(answer, {"gpus": CARD})}
    assert {"sleep", "logits"} <= set(helps)
    assert helps["sleep"].words == "--vllm-enable-sleep-mode"
    for one in helps.values():
        assert one.answer.job is not None
        again = answer_job(one.answer.job, {"gpus": CARD})
        assert again.sheets[0].device == one.answer.sheets[0].device
        assert one.saves_bytes == answer.sheets[0].device.value - again.sheets[0].device.value
    slept = grpo(max_completion_length=2048, vllm_enable_sleep_mode=True).sheets[0]
    instant = memsheet.Instant("update_actor/backward")
    assert helps["sleep"].answer.sheets[0].at(instant) == slept.at(instant)


@pytest.mark.parametrize("rounds", [1, 2])
def test_smaller_micro_batches_are_what_the_template_makes_of_them(rounds: int) -> None:
    answer = grpo(max_completion_length=4096, gradient_accumulation_steps=rounds)
    helps = [one for one in what_helps(answer, {"gpus": CARD}) if one.kind == "batch"]
    assert [one.words for one in helps] == [
        f"--per-device-train-batch-size 1 --gradient-accumulation-steps {8 * rounds}"
    ]
    said = grpo(
        max_completion_length=4096, per_device_train_batch_size=1, gradient_accumulation_steps=8 * rounds
    )
    instant = memsheet.Instant("update_actor/loss")
    ours, theirs = helps[0].answer.sheets[0].at(instant).value, said.sheets[0].at(instant).value
    assert abs(ours - theirs) <= theirs // 200


def test_states_that_are_divided_are_what_the_launchers_file_makes_of_them(tmp_path: Path) -> None:
    recipe, launcher = tmp_path / "dpo.yaml", tmp_path / "fsdp.yaml"
    recipe.write_text(
        "model_name_or_path: meta-llama/Llama-3.1-8B-Instruct\ndataset_name: x/y\nbeta: 0.1\nbf16: true\nmax_length: 1024\n"
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\nlearning_rate: 5.0e-7\n"
    )  # fmt: skip
    launcher.write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nfsdp_config:\n"
        "  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_reshard_after_forward: true\n"
    )  # fmt: skip
    answer = memsheet.check(recipe, gpus="8xA100-80GB").answer
    said = memsheet.check(recipe, launcher, gpus="8xA100-80GB").answer
    assert answer is not None
    assert said is not None
    helps = {one.kind: one.answer.sheets[0] for one in what_helps(answer, {"gpus": "8xA100-80GB"})}
    ours, theirs = helps["shard"].device.value, said.sheets[0].device.value
    assert abs(ours - theirs) <= theirs // 100


def test_a_launch_is_told_its_cure(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "wild_configs" / "ve-grpo-qwen3-8b.sh").read_text()
    file = tmp_path / "run.sh"
    file.write_text(
        text.replace(
            "actor_rollout_ref.rollout.n=5",
            "actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.free_cache_engine=False",
        )
    )
    found = memsheet.check(file, gpus="8xH100-80GB")
    cures = {rule.id: one.cure for rule, one in found.mistakes}
    assert cures["job-sleep"] == "actor_rollout_ref.rollout.free_cache_engine=True"
    assert cures["job-logits"] == "actor_rollout_ref.model.use_fused_kernels=True"
    assert "fragmentation" not in cures


def test_a_template_is_told_to_divide_its_states_in_its_own_words() -> None:
    """Of several cards, and with what its own flag then gives."""
    said = {"model": "Qwen/Qwen3-4B", "gpus": "4xH100-80GB", "max_completion_length": 1024}
    found = memsheet.job("trl-grpo", **said)
    (told,) = [one for one in what_helps(found, {"gpus": "4xH100-80GB"}) if one.kind == "shard"]
    assert told.words == "--engine fsdp2"
    own = memsheet.job("trl-grpo", **said, engine="fsdp2")
    needs = [max(int(sheet.device.value) for sheet in one.sheets) for one in (told.answer, own)]
    assert needs[0] == needs[1]


GRPO = """from trl import GRPOTrainer, GRPOConfig
args = GRPOConfig(output_dir="o", per_device_train_batch_size=8, num_generations=8, max_completion_length=1024,
    gradient_accumulation_steps=4, bf16=True, gradient_checkpointing=True, use_vllm=True,
    vllm_mode="colocate", vllm_gpu_memory_utilization=0.4{more})
trainer = GRPOTrainer(model="Qwen/Qwen2.5-3B-Instruct", reward_funcs=reward, args=args, train_dataset=ds)
trainer.train()
"""


def checked_script(folder: Path, more: str = "", **flags: Any) -> Any:
    (folder / "grpo.py").write_text(GRPO.format(more=more))
    return memsheet.check(folder / "grpo.py", gpus="1xA100-80GB", **flags)


def test_changes_that_fit_together_keep_the_most_rows_with_which_they_do() -> None:
    """The smallest micro-batch was kept, which alone frees the most."""
    where = {"gpus": "1xA100-40GB"}
    answer = memsheet.job(
        "trl-grpo",
        model="Qwen/Qwen3-1.7B",
        max_completion_length=2048,
        per_device_train_batch_size=16,
        **where,
    )
    cure = next(one for one in what_helps(answer, where) if one.kind == "together")
    document = cure.answer.job
    assert document is not None
    rows = int(document["roles"]["actor"]["plan"]["microbatch"])
    assert 1 < rows < 16
    assert f"--per-device-train-batch-size {rows} " in cure.words
    more = answer_job(with_so_many_rows(document, 2 * rows, rows), where)
    assert more.verdict is not None
    assert more.verdict.result is not memsheet.Result.FITS


def test_a_cure_that_leaves_prompts_open_names_what_says_them(tmp_path: Path) -> None:
    """Typed with the rows that it names, the cure fits for sure."""
    cure = next(one for rule, one in checked_script(tmp_path).mistakes if rule.id == "job-together")
    rows = re.search(r"\(--seq-len (\d+) says so\)", cure.says)
    assert rows
    cured = checked_script(tmp_path, f", {cure.cure}", seq_len=int(rows[1]))
    assert cured.answer.verdict.result is memsheet.Result.FITS


def test_rows_that_leave_no_prompt_soften_nothing(tmp_path: Path) -> None:
    plain, shorter = checked_script(tmp_path), checked_script(tmp_path, seq_len=640)
    assert shorter.answer.verdict.device == plain.answer.verdict.device
    assert "640 leave none beside an answer of 1,024" in shorter.doubt
    least = format_bytes(int(plain.answer.verdict.device.low))
    assert f"{least} at the least" in plain.doubt
