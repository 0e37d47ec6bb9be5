"""NeMo-RL's configurations as jobs of several models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.report.shared.checked import Checked

BASE = """
grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 8}
loss_fn: {reference_policy_kl_penalty: 0.01}
policy:
  model_name: Qwen/Qwen3-0.6B
  train_global_batch_size: 64
  train_micro_batch_size: 2
  logprob_batch_size: 4
  max_total_sequence_length: 1024
  precision: bfloat16
  logprob_chunk_size: null
  dtensor_cfg: {enabled: true, activation_checkpointing: true, tensor_parallel_size: 1, context_parallel_size: 1, cpu_offload: false}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 1, optimizer: {optimizer: adam, use_precision_aware_optimizer: true}}
  sequence_packing: {enabled: false, train_mb_tokens: "${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}"}
  optimizer: {name: torch.optim.AdamW, kwargs: {foreach: false, fused: false}}
  generation:
    backend: vllm
    vllm_cfg: {tensor_parallel_size: 1, gpu_memory_utilization: 0.4, max_model_len: "${policy.max_total_sequence_length}"}
    colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}
cluster: {gpus_per_node: 2, num_nodes: 1}
"""


def checked(folder: Path, child: str = "") -> Checked:
    (folder / ".git").mkdir(exist_ok=True)
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "base.yaml").write_text(BASE)
    file = folder / "recipes" / "grpo.yaml"
    file.write_text(f"defaults: ../base.yaml\n{child}\n")
    return memsheet.check(file, gpus="2xA100-80GB")


def job_of(found: Checked) -> dict[str, Any]:
    assert found.answer is not None
    assert found.answer.job is not None
    return dict(found.answer.job)


def phases_of(found: Checked) -> dict[str, dict[str, Any]]:
    return {phase["name"]: phase for phase in job_of(found)["phases"]}


def held(found: Checked, instant: str, role: str, component: str = "") -> int:
    assert found.answer is not None
    when = memsheet.Instant(instant)
    return sum(
        int(item.at[when].value)
        for item in found.answer.sheets[0].items
        if item.path.startswith(f"{role}/") and when in item.at and component in item.component.value
    )


def test_policy_and_server_leave_the_card_to_each_other(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert list(phases_of(found)) == ["update_weights", "gen", "old_log_prob", "ref", "update_actor"]
    assert not found.doubt
    assert held(found, "gen/decode", "actor", "parameters") == 0
    assert held(found, "ref/loss", "actor", "optimizer_states") == 0
    assert held(found, "update_actor/loss", "actor", "optimizer_states") > 0
    assert held(found, "update_actor/loss", "rollout", "kv_cache") == 0


def test_a_child_says_more_than_what_it_stands_on(tmp_path: Path) -> None:
    found = checked(
        tmp_path, "policy: {train_micro_batch_size: 3}\ncluster: {_override_: true, gpus_per_node: 2}"
    )
    assert found.answer is not None
    assert int(found.answer.plan.training.microbatch) == 3
    assert any("base.yaml" in line for line in found.assumed)


def test_a_model_that_rewards_and_teachers_have_cards_of_their_own(tmp_path: Path) -> None:
    rewarded = checked(
        tmp_path,
        "data: {default: {env_name: reward_model}}\nenv: {reward_model: {resources: {gpus_per_node: 1}}}",
    )
    assert job_of(rewarded)["placement"]["actor"] == [0, 1]
    assert "rewards" in rewarded.doubt
    apart = "non_colocated_teachers: {enabled: true}"
    taught = checked(
        tmp_path,
        f"on_policy_distillation: {{enabled: true, teacher_model_by_agent_name: {{one: any/one}}, {apart}}}\n"
        "cluster: {gpus_per_node: 2, num_nodes: 2}",
    )
    assert job_of(taught)["placement"]["actor"] == [0, 2]
    assert "teachers" in taught.doubt


def test_what_a_file_names_once_and_takes_again_is_read(tmp_path: Path) -> None:
    found = checked(
        tmp_path, "policy: &policy\n  train_micro_batch_size: 3\nteacher: {<<: *policy, model_name: any/one}"
    )
    assert found.answer is not None
    assert int(found.answer.plan.training.microbatch) == 3


def test_without_its_parent_nothing_is_made_up(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(BASE.replace("\ngrpo:", "\ndefaults: elsewhere.yaml\ngrpo:", 1))
    assert "defaults" in memsheet.check(file, gpus="2xA100-80GB").doubt


def test_what_says_nothing_without_its_parent_is_told_which_it_is(tmp_path: Path) -> None:
    file = tmp_path / "grpo-4n8g.yaml"
    file.write_text("defaults: ../grpo-1n8g.yaml\ncluster: {num_nodes: 4}\n")
    with pytest.raises(
        memsheet.InputError, match=r"stands on \.\./grpo-1n8g\.yaml, which is not among the files"
    ):
        memsheet.check(file, gpus="2xA100-80GB")


def test_sums_of_names_are_summed_up(tmp_path: Path) -> None:
    found = checked(tmp_path, "policy: {sequence_packing: {enabled: true}}")
    assert found.answer is not None
    assert int(found.answer.plan.training.seq_len or 0) == 2048


def test_without_kl_nobody_reads_a_reference(tmp_path: Path) -> None:
    assert "ref" not in phases_of(checked(tmp_path, "loss_fn: {reference_policy_kl_penalty: 0}"))


def test_servers_of_their_own_take_cards_from_the_node(tmp_path: Path) -> None:
    apart = "{enabled: false, resources: {gpus_per_node: 1}}"
    more = f"policy: {{generation: {{colocated: {apart}}}}}\ncluster: {{gpus_per_node: 3}}"
    found = checked(tmp_path, more)
    assert job_of(found)["placement"] == {"actor": [0, 2], "rollout": [2, 1]}
    assert phases_of(found)["gen"]["residents"]["actor"] == "whole"


def test_chunks_hold_less_of_the_logits(tmp_path: Path) -> None:
    whole, parts = checked(tmp_path), checked(tmp_path, "policy: {logprob_chunk_size: 256}")
    assert held(parts, "ref/loss", "actor", "temporaries") < held(whole, "ref/loss", "actor", "temporaries")


def test_megatron_is_read_by_its_own_words(tmp_path: Path) -> None:
    own = "{enabled: true, tensor_model_parallel_size: 2}"
    more = f"policy: {{dtensor_cfg: {{enabled: false}}, megatron_cfg: {own}}}"
    found = checked(tmp_path, more)
    assert found.answer is not None
    assert found.answer.plan.engine == "megatron"
    assert int(found.answer.plan.mesh.tp) == 2


def test_a_precision_aware_optimizer_keeps_the_half_that_bf16_lacks(tmp_path: Path) -> None:
    own = "{enabled: true, optimizer: {use_precision_aware_optimizer: AWARE}}"
    more = f"policy: {{dtensor_cfg: {{enabled: false}}, megatron_cfg: {own}}}"
    aware, plain = (checked(tmp_path, more.replace("AWARE", said)) for said in ("true", "false"))
    assert "use_precision_aware_optimizer" not in aware.doubt
    halves, wholes = (held(one, "update_actor/backward", "actor", "master_weights") for one in (aware, plain))
    assert 0 < 2 * halves == wholes


SGLANG = (
    "policy: {{generation: {{backend: sglang, sglang_cfg: {{tp_size: 2, pp_size: 1, "
    "mem_fraction_static: 0.5, context_length: 1024, "
    "sglang_server_config: {{needs_offload: {away}, cpu_weight_backup: {copied}}}}}}}}}"
)


def test_sglang_rests_as_its_settings_say(tmp_path: Path) -> None:
    """Away with a copy on the host, away without one, or on the card all the time."""
    rests = {(True, True): "asleep-1", (True, False): "asleep-2", (False, True): "whole"}
    for (away, copied), rest in rests.items():
        found = checked(tmp_path, SGLANG.format(away=str(away).lower(), copied=str(copied).lower()))
        serves = job_of(found)["roles"]["rollout"]["plan"]
        assert (serves["engine"], serves["mesh"]["tp"]) == ("sglang", 2)
        assert serves["serving"]["memory_fraction"] == 0.5
        phases = phases_of(found)
        assert phases["update_actor"]["residents"]["rollout"] == rest
        assert phases["update_weights"]["residents"]["rollout"] == (
            "whole" if rest == "whole" else "parameters"
        )
        assert not [word for word in found.doubt.split("; ") if word.endswith("is not read")]


def test_dynamo_starts_vllm_as_its_settings_say(tmp_path: Path) -> None:
    plain = job_of(checked(tmp_path, "policy: {generation: {vllm_kwargs: {max_num_seqs: 16}}}"))
    other = job_of(
        checked(tmp_path, "policy: {generation: {backend: dynamo, vllm_kwargs: {max_num_seqs: 16}}}")
    )
    assert other["roles"]["rollout"] == plain["roles"]["rollout"]
    assert other["roles"]["rollout"]["plan"]["serving"]["max_sequences"] == 16


@pytest.mark.parametrize("backend", ["sglang", "megatron"])
def test_other_servers_leave_the_policy_alone(backend: str, tmp_path: Path) -> None:
    found = checked(tmp_path, f"policy: {{generation: {{backend: {backend}}}}}")
    assert found.answer is not None
    assert found.answer.job is None
    assert found.doubt


def with_group(method: str, group: str) -> str:
    """The method of a child, and a group of a model of its own that is written as the policy is."""
    own = BASE.partition("policy:\n")[2].partition("  generation:")[0]
    model = own.replace("Qwen3-0.6B", "Qwen3-1.7B") if group == "teacher" else own
    body = model.replace("policy.", f"{group}.")
    return (
        f"grpo: null\n{method}: {{num_prompts_per_step: 8, num_generations_per_prompt: 8}}\n{group}:\n{body}"
    )


def test_values_are_a_role_with_its_own_phases(tmp_path: Path) -> None:
    found = checked(tmp_path, with_group("ppo", "value"))
    assert list(job_of(found)["roles"]) == ["actor", "critic", "rollout"]
    assert list(phases_of(found)) == [
        "update_weights",
        "gen",
        "values",
        "old_log_prob",
        "ref",
        "update_critic",
        "update_actor",
    ]
    assert held(found, "gen/decode", "critic", "parameters") == 0
    assert held(found, "update_critic/backward", "actor", "optimizer_states") == 0
    assert held(found, "update_critic/backward", "critic", "optimizer_states") > 0


def test_a_teacher_reads_while_the_student_s_states_are_away(tmp_path: Path) -> None:
    found = checked(tmp_path, with_group("distillation", "teacher"))
    assert str(job_of(found)["roles"]["teacher"]["model"]).lower().endswith("qwen3-1.7b")
    assert list(phases_of(found)) == ["update_weights", "gen", "teacher", "update_actor"]
    assert held(found, "teacher/loss", "actor", "optimizer_states") == 0
    assert held(found, "teacher/loss", "teacher", "parameters") > 0
    assert held(found, "update_actor/loss", "teacher", "parameters") == 0


def test_both_rows_of_a_pair_are_read_and_learnt_from_at_once(tmp_path: Path) -> None:
    """By weights of the reference's in the policy's place, which is no second model on the card."""
    methods = "grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 8}"
    (tmp_path / "dpo.yaml").write_text(BASE.replace(methods, "dpo: {reference_policy_kl_penalty: 0.05}"))
    found = memsheet.check(tmp_path / "dpo.yaml", gpus="2xA100-80GB")
    assert list(job_of(found)["roles"]) == ["actor"]
    assert list(phases_of(found)) == ["ref", "update_actor"]
    actor = job_of(found)["roles"]["actor"]["plan"]
    assert actor["microbatch"] == 4
    assert phases_of(found)["ref"]["logits"]["tokens"] == 4 * 1024
    assert held(found, "ref/loss", "actor", "optimizer") > 0
    assert "range holds both" not in found.doubt
    away = BASE.replace(methods, "dpo: {seed: 1}").replace(
        "  precision:", "  offload_optimizer_for_logprob: true\n  precision:"
    )
    (tmp_path / "dpo.yaml").write_text(away)
    assert (
        held(memsheet.check(tmp_path / "dpo.yaml", gpus="2xA100-80GB"), "ref/loss", "actor", "optimizer") == 0
    )


def test_a_student_whose_table_is_tied_is_counted_without_ranks_of_tensors(tmp_path: Path) -> None:
    """Its ranks divide the states anyway; the whole activations of each are more than a part of them."""
    found = checked(tmp_path, "policy: {dtensor_cfg: {tensor_parallel_size: 2}}")
    assert job_of(found)["roles"]["actor"]["plan"]["mesh"]["dp_shard"] == 2
    assert "a tied table has one part" in found.doubt
