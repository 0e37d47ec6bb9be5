"""TRL's jobs that generate or distil, as files and scripts say them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.report.shared.checked import Checked

MODEL = "Qwen/Qwen3-0.6B"
SAID = f"--model_name_or_path {MODEL} --dataset_name x --per_device_train_batch_size 4"
LENGTHS = "--max_prompt_length 512 --max_completion_length 256"
COMPONENT = memsheet.Component


def checked(
    folder: Path, text: str, *, name: str = "run.sh", gpus: str = "1xA100-80GB", **words: Any
) -> Checked:
    (folder / name).write_text(text)
    return memsheet.check(folder / name, gpus=gpus, **words)


def launched(folder: Path, script: str, flags: str, **words: Any) -> tuple[memsheet.Answer, str]:
    found = checked(
        folder, f"accelerate launch --num_processes 1 examples/scripts/{script}.py {SAID} {flags}\n", **words
    )
    assert found.answer is not None
    assert found.answer.job is not None, found.why_not
    return found.answer, found.doubt


def phases_of(answer: memsheet.Answer) -> list[str]:
    return list(dict.fromkeys(when.phase for when in answer.sheets[0].instants))


def held(answer: memsheet.Answer, role: str, *components: memsheet.Component) -> int:
    return max(
        sum(item.at[when].value for item in answer.sheets[0].items
            if item.path.startswith(f"{role}/") and item.component in components and when in item.at)
        for when in answer.sheets[0].instants
    )  # fmt: skip


def test_a_penalty_of_nothing_removes_exactly_the_reference(tmp_path: Path) -> None:
    """Which leave-one-out has by itself."""
    beside, _ = launched(tmp_path, "rloo", LENGTHS)
    without, _ = launched(tmp_path, "rloo", f"{LENGTHS} --beta 0")
    assert set(phases_of(beside)) - set(phases_of(without)) == {"ref"}
    own = [
        {(item.path, when): size for item in one.sheets[0].items for when, size in item.at.items()
         if when.phase != "ref" and not item.path.startswith("reference/") and item.component is not COMPONENT.ALLOCATOR_SLACK}
        for one in (beside, without)
    ]  # fmt: skip
    assert own[0] == own[1]


def test_a_model_that_generates_itself_has_its_weights_once(tmp_path: Path) -> None:
    answer, doubt = launched(tmp_path, "grpo", LENGTHS, engine_version="trl==0.27.2")
    assert doubt == ""
    assert phases_of(answer) == ["gen", "update_actor"]
    assert held(answer, "rollout", COMPONENT.PARAMETERS, COMPONENT.BUFFERS) == 0
    assert held(answer, "rollout", COMPONENT.KV_CACHE) > 0
    more, _ = launched(
        tmp_path, "grpo", f"{LENGTHS} --steps_per_generation 4 --gradient_accumulation_steps 4"
    )
    assert held(more, "rollout", COMPONENT.KV_CACHE) == 4 * held(answer, "rollout", COMPONENT.KV_CACHE)


def test_a_server_on_the_same_cards_sleeps_where_it_is_said(tmp_path: Path) -> None:
    beside = f"{LENGTHS} --use_vllm --vllm_mode colocate"
    awake, _ = launched(tmp_path, "grpo", beside)
    asleep, _ = launched(tmp_path, "grpo", f"{beside} --vllm_enable_sleep_mode")
    at = memsheet.Instant("update_actor/backward")
    assert awake.sheets[0].at(at).value > asleep.sheets[0].at(at).value
    assert "update_weights" in phases_of(asleep)
    _, doubt = launched(tmp_path, "grpo", f"{LENGTHS} --use_vllm")
    assert "vllm_mode is not said" in doubt


def test_a_prompt_of_unknown_length_is_a_doubt(tmp_path: Path) -> None:
    answer, doubt = launched(tmp_path, "grpo", "--max_completion_length 256")
    assert "how long prompts are" in doubt
    assert answer.verdict is not None
    assert answer.verdict.result is memsheet.Result.UNCERTAIN
    _, none = launched(tmp_path, "grpo", "--max_completion_length 256", seq_len=768)
    assert none == ""


def test_a_teacher_stands_beside_its_student(tmp_path: Path) -> None:
    answer, _ = launched(tmp_path, "gkd", "--teacher_model_name_or_path Qwen/Qwen3-1.7B --max_length 512")
    assert answer.job is not None
    assert list(answer.job["roles"]) == ["actor", "teacher"]
    between = held(answer, "actor", COMPONENT.TEMPORARIES)
    ends, _ = launched(
        tmp_path, "gkd", "--teacher_model_name_or_path Qwen/Qwen3-1.7B --max_length 512 --beta 0"
    )
    assert held(ends, "actor", COMPONENT.TEMPORARIES) < between
    fused, _ = launched(
        tmp_path, "gkd", "--teacher_model_name_or_path Qwen/Qwen3-1.7B --max_length 512 --use_liger_kernel"
    )
    assert fused.sheets[0].device.value < ends.sheets[0].device.value


def test_two_answers_of_every_prompt_are_learnt_from(tmp_path: Path) -> None:
    answer, _ = launched(tmp_path, "online_dpo", "--max_new_tokens 64")
    assert answer.job is not None
    plan = answer.job["roles"]["actor"]["plan"]
    assert (plan["microbatch"], plan["seq_len"]) == (8, 512)
    assert "reference" in answer.job["roles"]


def test_a_policy_and_its_critic_go_back_at_once(tmp_path: Path) -> None:
    """Nothing is recomputed, and scores of all answers stand together."""
    answer, doubt = launched(
        tmp_path, "ppo", f"--reward_model_path {MODEL} --response_length 128", seq_len=640
    )
    assert answer.job is not None
    roles = answer.job["roles"]
    assert list(roles) == ["actor", "critic", "reward", "reference"]
    assert roles["actor"]["plan"]["recompute"] == {"mode": "none"}
    rows = {item.path: item for item in answer.sheets[0].items}
    assert rows["critic/at_once"].at[memsheet.Instant("update_actor/loss")].value > 0
    assert rows["actor/scores"].at[memsheet.Instant("gen/load")].low >= 4 * 4 * 128 * 151_936
    assert "in the width of the policy" in doubt


def test_weights_of_nobody_are_refused() -> None:
    server = {"model": MODEL, "plan": {"task": "infer", "engine": "transformers"}, "weights_of": "actor"}
    with pytest.raises(InputError, match="names another role"):
        memsheet.job(
            {"roles": {"rollout": server}, "phases": [{"name": "gen", "active": "rollout"}]}, gpus="1xL4"
        )


def test_a_script_is_started_as_its_own_text_says(tmp_path: Path) -> None:
    (tmp_path / "zero3.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n"
    )
    text = f'''"""
accelerate launch --config_file zero3.yaml train.py --beta 0.1
"""
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="o", per_device_train_batch_size=4, max_completion_length=256, use_vllm=True, vllm_mode="server")
GRPOTrainer(model="{MODEL}", args=args, reward_funcs=score, train_dataset=data).train()
'''
    found = checked(tmp_path, text, name="train.py", gpus="2xA100-80GB")
    assert found.answer is not None
    assert found.answer.plan.engine == "deepspeed"
    assert found.answer.plan.zero == 3


@pytest.mark.parametrize(
    ("script", "flag"), [("grpo", "--reward_model_name_or_path"), ("rloo", "--reward_model_name_or_path")]
)
def test_a_model_that_rewards_is_a_role_and_takes_nothing_from_the_others(
    tmp_path: Path, script: str, flag: str
) -> None:
    without, _ = launched(tmp_path, script, LENGTHS)
    rewarded, _ = launched(tmp_path, script, f"{LENGTHS} {flag} {MODEL}")
    assert rewarded.job is not None
    assert rewarded.job["roles"]["reward"]["trained"] is False
    assert phases_of(rewarded)[-2:] == ["reward", "update_actor"]
    own = {
        (item.path, when): size for item in rewarded.sheets[0].items for when, size in item.at.items()
        if when.phase != "reward" and not item.path.startswith("reward/") and item.component is not COMPONENT.ALLOCATOR_SLACK
    }  # fmt: skip
    plain = {
        (item.path, when): size for item in without.sheets[0].items for when, size in item.at.items()
        if item.component is not COMPONENT.ALLOCATOR_SLACK
    }  # fmt: skip
    assert own == plain
    assert held(rewarded, "reward", COMPONENT.PARAMETERS) > 0
    assert rewarded.sheets[0].device.value >= without.sheets[0].device.value


def test_further_models_that_reward_are_further_roles(tmp_path: Path) -> None:
    text = f"{SAID.replace(' --', chr(10)).replace('--', '')}"
    recipe = "\n".join(line.replace(" ", ": ", 1) for line in text.split("\n"))
    found = checked(
        tmp_path, f"{recipe}\nuse_vllm: false\nnum_generations: 4\nmax_completion_length: 256\nmax_prompt_length: 512\n"
        f"reward_funcs: [{MODEL}, my_module.length_reward, Qwen/Qwen3-1.7B]\n", name="recipe.yaml",
    )  # fmt: skip
    assert found.answer is not None
    assert found.answer.job is not None
    assert [name for name in found.answer.job["roles"] if name.startswith("reward")] == ["reward", "reward_1"]


@pytest.mark.parametrize(
    ("script", "flags", "roles", "rows"),
    [
        ("online_dpo", "", ["actor", "reference"], 8), ("xpo", f"--reward_model_path {MODEL}", ["actor", "reference", "reward"], 8),
        ("nash_md", "", ["actor", "reference"], 4), ("tpo", "", ["actor"], 12), ("tpo", "--tpo_alpha 0.0", ["actor"], 8),
        ("gold", f"--teacher_model_name_or_path {MODEL}", ["actor", "teacher"], 4),
        ("async_grpo", "--token_budget 4096", ["actor"], 1), ("online_dpo", "--use_vllm --vllm_mode server", ["actor", "reference"], 8),
        ("distillation", f"--teacher_model_name_or_path {MODEL}", ["actor", "teacher"], 4),
    ],
)  # fmt: skip
def test_methods_and_how_many_rows_each_learns_from(
    tmp_path: Path, script: str, flags: str, roles: list[str], rows: int
) -> None:
    answer, _ = launched(tmp_path, script, flags)
    assert answer.job is not None
    assert sorted(answer.job["roles"]) == sorted(roles)
    assert answer.job["roles"]["actor"]["plan"]["microbatch"] == rows


def test_a_trainer_apart_from_its_server_packs_as_many_tokens_as_it_says(tmp_path: Path) -> None:
    answer, doubt = launched(tmp_path, "async_grpo", "--token_budget 4096")
    assert answer.job is not None
    assert answer.job["roles"]["actor"]["plan"]["seq_len"] == 4096
    assert doubt == ""
    _, open_budget = launched(tmp_path, "async_grpo", "")
    assert "token_budget" in open_budget


def test_a_trainer_that_is_grpo_s_but_for_its_loss_is_as_it(tmp_path: Path) -> None:
    needs = []
    for name in ("GRPO", "GMPO"):
        home = "trl" if name == "GRPO" else "trl.experimental.gmpo"
        text = (
            f"from {home} import {name}Config, {name}Trainer\n"
            f'args = {name}Config(output_dir="o", per_device_train_batch_size=4, max_completion_length=256)\n'
            f'{name}Trainer(model="{MODEL}", args=args, reward_funcs=score, train_dataset=data).train()\n'
        )
        found = checked(tmp_path, text, name="train.py")
        assert found.answer is not None
        assert found.answer.job is not None
        needs.append(int(found.answer.sheets[0].device.value))
    assert needs[0] == needs[1]


BESIDE = """# pip install trl==0.27.2
from datasets import load_dataset
from peft import LoraConfig
from trl import METHODConfig, METHODTrainer
args = METHODConfig(output_dir="q", num_generations=8, max_completion_length=512, max_prompt_length=256, SAID
   per_device_train_batch_size=8, use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.25, beta=0.0,
   vllm_enable_sleep_mode=True, bf16=True, gradient_checkpointing=True)
trainer = METHODTrainer(model="MODEL", reward_funcs=lambda completions, **_: [0.0 for _ in completions], args=args,
   train_dataset=load_dataset("trl-lib/tldr", split="train"), peft_config=LoraConfig(r=16))
trainer.train()
"""


def verdicts_of_lengths(folder: Path, method: str, model: str, lengths: list[int]) -> list[tuple[str, bool]]:
    """By the length that its server is told, none first: the verdict, and whether it is said to be unsaid."""
    told = []
    for said in ("", *(f"vllm_max_model_length={one}," for one in lengths)):
        text = BESIDE.replace("METHOD", method).replace("MODEL", model).replace("SAID", said)
        found = checked(folder, text, name="train.py")
        assert found.answer is not None
        assert found.answer.verdict is not None
        told.append((found.answer.verdict.result.name, "vllm_max_model_length is not said" in found.doubt))
    return told


@pytest.mark.parametrize("method", ["GRPO", "RLOO"])
def test_a_server_beside_takes_the_length_of_the_release_that_is_named(tmp_path: Path, method: str) -> None:
    """And not that of the model that it was tuned from: under one name a model is served alike alone and in a
    job.
    """
    model = "Qwen/Qwen2.5-7B-Instruct"
    alone = memsheet.infer(model, gpus="1xA100-80GB", engine="vllm").plan.serving.max_model_len
    assert alone < 131072
    told = verdicts_of_lengths(tmp_path, method, model, [768, alone])
    assert [one for one, _ in told] == ["FITS", "FITS", "FITS"]


def test_a_server_whose_longest_nobody_says_stops_no_trainer(tmp_path: Path) -> None:
    """Releases took a prompt and an answer, and take what the model was made for."""
    told = verdicts_of_lengths(tmp_path, "GRPO", "meta-llama/Llama-3.1-8B-Instruct", [768, 131072])
    assert told == [("UNCERTAIN", True), ("FITS", False), ("DOES_NOT_FIT", False)]


SWITCHED = (
    "import argparse\nfrom trl import GRPOConfig, GRPOTrainer\n"
    "parser = argparse.ArgumentParser()\n"
    "parser.add_argument('--mode', default='colocate')\n"
    "parser.add_argument('--share', type=float, default={share})\n"
    "parser.add_argument('--urls', nargs='+', required=True)\n"
    "args = parser.parse_args()\n"
    "GRPOTrainer(model='Qwen/Qwen3-0.6B', reward_funcs=[r], args=GRPOConfig(use_vllm=True,\n"
    "    vllm_mode=args.mode,\n"
    "    vllm_gpu_memory_utilization=args.share or 0.25, max_prompt_length=256, max_completion_length=256,\n"
    "    per_device_train_batch_size={rows}, num_generations={group})).train()\n"
)


def rollout_share(found: Checked) -> float:
    assert found.answer is not None
    assert found.answer.job is not None
    return float(found.answer.job["roles"]["rollout"]["plan"]["serving"]["memory_fraction"])


def test_a_share_with_another_in_its_place_is_the_one_that_holds(tmp_path: Path) -> None:
    """``a or b`` is the first of them that is not nothing."""
    given = {"0.15": 0.15, "0": 0.25}
    for share, counted in given.items():
        text = SWITCHED.format(share=share, rows=4, group=4)
        assert rollout_share(checked(tmp_path, text, name="t.py")) == counted


def test_a_group_as_large_as_nobody_says_is_a_doubt(tmp_path: Path) -> None:
    open_ = checked(tmp_path, SWITCHED.format(share=0.2, rows=4, group="len(args.urls)"), name="t.py")
    assert rollout_share(open_) == 0.2
    assert "num_generations is not told: counted with 8" in open_.doubt
    told = checked(tmp_path, SWITCHED.format(share=0.2, rows=4, group=4), name="t.py")
    assert "num_generations" not in told.doubt


def generating_casts(answer: memsheet.Answer) -> int:
    """Matrices in the dtype of products while a token is generated."""
    when = memsheet.Instant("gen/decode")
    return sum(
        int(item.at[when].value)
        for item in answer.sheets[0].items
        if item.path.startswith("rollout/") and item.path.endswith("/cast") and when in item.at
    )


def test_autocast_makes_matrices_of_wide_weights_while_a_model_generates(tmp_path: Path) -> None:
    """All of them in two bytes for four, but for the last that is made, and those that want no gradient."""
    wide, _ = launched(tmp_path, "grpo", LENGTHS)
    when = memsheet.Instant("gen/decode")
    matrices = sum(
        int(item.at[when].value)
        for item in wide.sheets[0].items
        if item.component is COMPONENT.PARAMETERS and when in item.at and item.path.endswith("_proj")
    )
    table = 2 * wide.model.vocab * wide.model.hidden
    assert 0.96 * matrices // 2 <= generating_casts(wide) - table <= matrices // 2
    for words in ("--dtype bfloat16", "--use_peft --lora_r 8"):
        other, _ = launched(tmp_path, "grpo", f"{LENGTHS} {words}")
        assert generating_casts(other) < table // 10, words  # adapters' own at the most


def test_a_named_release_says_where_its_server_is(tmp_path: Path) -> None:
    """By number or with the package's name: since 1.0 on the trainer's cards."""
    beside = f"{LENGTHS} --use_vllm true"
    _, doubt = launched(tmp_path, "grpo", beside)
    assert "vllm_mode is not said" in doubt
    for release, there in (("trl==1.6", True), ("1.6", True), ("0.20", False)):
        answer, doubt = launched(tmp_path, "grpo", beside, engine_version=release)
        assert "vllm_mode is not said" not in doubt
        assert ("rollout" in (answer.job or {})["roles"]) is there, release


def test_a_rank_by_another_name_is_told_with_the_switch_that_it_needs(tmp_path: Path) -> None:
    files = {
        "run.sh": (f"trl grpo {SAID} {LENGTHS} --lora_rank 16\n", "--use_peft --lora_r?"),
        "grpo.yaml": (
            f"model_name_or_path: {MODEL}\nnum_generations: 4\nlora_rank: 16\n",
            "use_peft: true, lora_r?",
        ),
    }
    for name, (text, cure) in files.items():
        found = checked(tmp_path, text, name=name)
        assert cure in [one.cure for rule, one in found.mistakes if rule.id == "unknown-key"]
