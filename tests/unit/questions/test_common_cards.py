"""Files are answered on common cards where none is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memsheet
from memsheet.cli import main
from memsheet.questions.common_cards import COMMON_CARDS

TEXT = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\n"


def test_each_common_card_has_the_verdict_that_it_has_when_named(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(TEXT)
    found = memsheet.check(tmp_path / "a.yml")
    assert found.result is None
    assert len(found.common) == len(COMMON_CARDS)
    for one in found.common:
        named = memsheet.check(tmp_path / "a.yml", gpus=one.gpus)
        assert named.answer is not None
        assert named.answer.verdict is not None
        assert (one.result, one.device) == (named.result, named.answer.verdict.device)


def test_a_named_card_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(TEXT)
    assert memsheet.check(tmp_path / "a.yml", gpus="1xH100-80GB").common == ()


def test_a_tree_without_cards_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    for name in ("a.yml", "b.yml"):
        (tmp_path / "one" / name).write_text(TEXT)
    assert main(["check", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 launches: 2 PREDICTED")
    assert "1×H100-80GB" in shown
    main(["check", str(tmp_path), "--json"])
    launches = json.loads(capsys.readouterr().out)["launches"]
    assert {one["outcome"] for one in launches} == {"predicted"}
    assert [one["gpus"] for one in launches[0]["checked"]["common_cards"]][-1] == "1xH100-80GB"


def test_a_script_is_joined_with_the_configuration_that_the_tree_holds(tmp_path: Path) -> None:
    """Names are relative to where people start a script from: the root of the repository."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / ".git").mkdir()
    script = tmp_path / "scripts" / "train.sh"
    script.write_text(
        "accelerate launch --config_file configs/fsdp.yaml run_clm.py --model_name_or_path "
        "Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --bf16 --block_size 2048\n"
    )
    (tmp_path / "configs" / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nmixed_precision: bf16\nnum_processes: 8\n"
    )
    found = memsheet.check(script, gpus="8xH100-80GB")
    assert found.answer is not None
    assert (found.answer.plan.engine, found.answer.plan.zero) == ("fsdp1", 3)
    (tmp_path / ".git").rmdir()
    assert "is named and is not among the files" in memsheet.check(script, gpus="8xH100-80GB").doubt


def test_names_are_relative_to_the_folder_that_is_asked_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that is no repository is asked from its root, as its scripts are started; a file that is named
    otherwise is not.
    """
    (tmp_path / "tree" / "scripts").mkdir(parents=True)
    (tmp_path / "ddp.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    script = tmp_path / "tree" / "scripts" / "train.sh"
    script.write_text(
        "accelerate launch --config_file ddp.yaml run_clm.py --model_name_or_path "
        "Qwen/Qwen2.5-0.5B --per_device_train_batch_size 1 --bf16 --block_size 512\n"
    )
    monkeypatch.chdir(tmp_path / "tree")
    for named in ("scripts/train.sh", script):
        assert "is not among the files" in memsheet.check(named, gpus="4xH100-80GB").doubt
    monkeypatch.chdir(tmp_path)
    assert "is not among the files" not in memsheet.check("tree/scripts/train.sh", gpus="4xH100-80GB").doubt
    assert "is not among the files" in memsheet.check(script, gpus="4xH100-80GB").doubt


def test_a_name_may_begin_with_a_folder_above_the_script(tmp_path: Path) -> None:
    home = tmp_path / "examples"
    (home / "scripts").mkdir(parents=True)
    (home / "configs").mkdir()
    script = home / "scripts" / "train.sh"
    script.write_text(
        "accelerate launch --config_file examples/configs/ddp.yaml run_clm.py --model_name_or_path "
        "Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --bf16 --block_size 2048\n"
    )
    (home / "configs" / "ddp.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    found = memsheet.check(script, gpus="4xH100-80GB")
    assert "is not among the files" not in found.doubt
    outside = tmp_path / "examples.yaml"
    outside.write_text("distributed_type: FSDP\nnum_processes: 4\n")
    script.write_text(script.read_text().replace("examples/configs/ddp.yaml", "../../examples.yaml"))
    assert "is not among the files" in memsheet.check(script, gpus="4xH100-80GB").doubt


@pytest.mark.parametrize(
    ("strategy", "zero"), [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("1", 3), ("2", 2), ("NO_SHARD", 0)]
)
def test_the_strategy_of_fsdps_first_version_decides(strategy: str, zero: int, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        f"distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {strategy}\nmixed_precision: bf16\n"
    )
    found = memsheet.check(tmp_path / "a.yaml")
    (read,) = found.reads.values()
    assert read.request["zero"] == zero


def test_cards_that_a_file_names_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"
        "  nodeSelector:\n    node.kubernetes.io/instance-type: g6.12xlarge\n"
        "  containers:\n  - name: a\n    image: vllm/vllm-openai:v0.10.2\n"
        "    args: [--model=Qwen/Qwen2.5-7B-Instruct, --tensor-parallel-size=2, --max-model-len=8192]\n"
    )
    checked = memsheet.check(file)
    assert checked.answer is not None
    assert checked.answer.cluster is not None
    assert (checked.answer.cluster.count, checked.answer.cluster.device.name) == (2, "L4")
    assert not checked.common
    assert any("g6.12xlarge" in told for told in checked.assumed)
