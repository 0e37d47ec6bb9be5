"""What configurations leave to a training script, to disks and to files that are not there: never a sure
verdict, and said by its name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange.verdict_doubts import tower_parameters
from memsheet.plan.aliases import DEEPSPEED_FP16
from memsheet.questions.check import check_configuration_files
from memsheet.report.screen.checked import render_checked
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.look import Look
from memsheet.sheet import Component, Instant

WHERE: dict[str, Any] = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
}
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
WIDTH = {"bf16": {"enabled": True}}
ZERO: dict[str, Any] = {"zero_optimization": {"stage": 3}}
EVERY_WIDTH: tuple[dict[str, Any], ...] = (
    {"precision.name": "fp32"},
    {"precision.name": "bf16-master"},
    DEEPSPEED_FP16,
)
LAUNCH = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
"""


def checked(
    folder: Path,
    files: dict[str, Any],
    *,
    gpus: str = "8xA100-80GB",
    model: str = "llama-3.2-1b",
    **flags: Any,
) -> Checked:
    for name, held in files.items():
        (folder / name).write_text(held if isinstance(held, str) else json.dumps(held))
    given = {key: value for key, value in {"seq_len": 512, **flags}.items() if value is not None}
    found = check_configuration_files((str(folder),), model, {**WHERE, "gpus": gpus}, given)
    assert found.answer is not None
    return found


def result(found: Checked) -> str:
    assert found.result is not None
    return found.result.value


@pytest.mark.parametrize(
    ("batch", "width"),
    [(AUTO, {"bf16": {"enabled": "auto"}}), ({}, {}), ({"gradient_accumulation_steps": 4}, WIDTH)],
)
def test_what_a_script_decides_leaves_no_sure_fit(
    batch: dict[str, Any], width: dict[str, Any], tmp_path: Path
) -> None:
    found = checked(tmp_path, {"ds_config.json": {**ZERO, **batch, **width}})
    assert result(found) == "uncertain"
    assert "--microbatch" in found.doubt
    assert ("--precision" in found.doubt) is (width != WIDTH)


def test_flags_and_other_files_say_what_a_file_leaves_open(tmp_path: Path) -> None:
    files: dict[str, Any] = {"ds_config.json": {**ZERO, **AUTO, "bf16": {"enabled": "auto"}}}
    assert "--precision" in checked(tmp_path, files, microbatch=1).doubt
    assert not checked(tmp_path, files, microbatch=1, **{"precision.name": "bf16-master"}).doubt
    args = (
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 1\nbf16: true\ndeepspeed: "
        "ds_config.json\n"
    )
    found = checked(tmp_path, {**files, "args.yaml": args})
    assert (result(found), found.doubt) == ("fits", "")


def test_what_does_not_fit_with_one_sequence_is_sure(tmp_path: Path) -> None:
    assert (
        result(
            checked(
                tmp_path,
                {"ds_config.json": {**ZERO, **AUTO, **WIDTH}},
                model="llama-3-70b",
                gpus="2xA100-80GB",
            )
        )
        == "does_not_fit"
    )


@pytest.mark.parametrize(("rounds", "micro"), [({}, 8), ({"gradient_accumulation_steps": 2}, 4)])
def test_deepspeed_makes_the_micro_batch_of_the_whole_one(
    rounds: dict[str, int], micro: int, tmp_path: Path
) -> None:
    found = checked(tmp_path, {"ds_config.json": {**ZERO, **WIDTH, "train_batch_size": 64, **rounds}})
    assert found.answer is not None
    assert int(found.answer.plan.training.microbatch) == micro
    assert not found.doubt


def test_a_silent_file_takes_the_launchers_precision(tmp_path: Path) -> None:
    launch = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: "
        "bf16\nnum_processes: 8\n"
    )
    launch += "deepspeed_config:\n  deepspeed_config_file: ds_config.json\n"
    found = checked(
        tmp_path, {"accelerate.yaml": launch, "ds_config.json": {**ZERO, "train_micro_batch_size_per_gpu": 1}}
    )
    assert found.answer is not None
    assert found.answer.plan.precision.compute.name == "bf16"
    assert "files-disagree" not in {rule.id for rule, _ in found.mistakes}


@pytest.mark.parametrize("group", ["offload_param", "offload_optimizer"])
def test_disks_are_sheeted_as_host_memory_and_told(group: str, tmp_path: Path) -> None:
    both: dict[str, Any] = {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    }
    config = {**WIDTH, "train_micro_batch_size_per_gpu": 1, "zero_optimization": both}
    host = checked(tmp_path, {"ds_config.json": config})
    disk = checked(
        tmp_path,
        {
            "ds_config.json": {
                **config,
                "zero_optimization": {**both, group: {"device": "nvme", "nvme_path": "/d"}},
            }
        },
    )
    assert host.answer is not None
    assert disk.answer is not None
    assert disk.answer.sheets[0].device == host.answer.sheets[0].device
    assert (result(host), result(disk)) == ("fits", "uncertain")
    assert f"{group}.device nvme" in disk.doubt
    assert "disks are not modelled" in disk.doubt


def test_no_change_is_looked_for_where_the_sheet_fits(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        {"ds_config.json": {**ZERO, **WIDTH, "train_micro_batch_size_per_gpu": 1, "amp": {"enabled": True}}},
    )
    doubtful = checked(tmp_path, {"ds_config.json": {**ZERO, **AUTO, **WIDTH}})
    look = Look(width=100, decimal=False, full=False, colour=False, ascii=True)
    assert result(doubtful) == result(found) == "uncertain"
    assert all("What helps" not in render_checked(one, look) for one in (found, doubtful))


def test_the_flag_stands_for_the_files_processes(tmp_path: Path) -> None:
    told = checked(tmp_path, {"accelerate.yaml": LAUNCH}, microbatch=1)
    assert result(told) == "fits"
    assert any(
        "8 GPUs" in line and "16 processes" in line and "accelerate.yaml" in line for line in told.assumed
    )
    same = checked(tmp_path, {"accelerate.yaml": LAUNCH}, gpus="16xA100-80GB", microbatch=1)
    assert not any("processes" in line for line in same.assumed)


def test_a_folder_may_hold_other_files(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "accelerate.yaml": LAUNCH,
        "data.json": {"a": 1},
        "broken.json": "{",
        "clean.sh": "rm -f *.log\n",
    }
    found = checked(tmp_path, files, microbatch=1)
    assert set(found.reads) == {"accelerate.yaml"}
    assert [line.partition(":")[0] for line in found.not_read] == ["broken.json", "clean.sh", "data.json"]
    look = Look(width=100, decimal=False, full=False, colour=False, ascii=True)
    assert "Not read  broken.json" in render_checked(found, look)


def test_a_file_that_is_named_must_be_known_and_a_folder_must_hold_one(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"a": 1}')
    for named in (str(tmp_path / "data.json"), str(tmp_path)):
        with pytest.raises(InputError, match=r"data\.json: is not recognised"):
            check_configuration_files((named,), "llama-3.2-1b", {**WHERE, "gpus": None}, {})
    (tmp_path / "accelerate.yaml").write_text(LAUNCH)
    with pytest.raises(InputError, match="is not recognised"):
        check_configuration_files(
            (str(tmp_path), str(tmp_path / "data.json")), None, {**WHERE, "gpus": None}, {}
        )


def test_a_server_configuration_has_no_training_script(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        {"serve.sh": "vllm serve llama-3.2-1b --max-model-len 512\n"},
        gpus="1xA100-80GB",
        seq_len=None,
    )
    assert "--microbatch" not in found.doubt


def test_an_adapters_kernels_are_axolotls_own_doing_and_keep_less(tmp_path: Path) -> None:
    text = (
        "base_model: llama-3.2-1b\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nsequence_len: "
        "512\nmicro_batch_size: 1\n"
    )
    text += "gradient_accumulation_steps: 1\noptimizer: adamw_torch\nbf16: true\n"
    kernels = "lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel, lora_embedding_kernel"
    for more, named in (
        ("", kernels),
        ("lora_mlp_kernel: true\n", "lora_mlp_kernel"),
        ("lora_o_kernel: false\n", ""),
    ):
        found = checked(tmp_path, {"axolotl.yaml": text + more}, seq_len=None)
        assert (found.doubt, [one.at for one in found.moved]) == ("", [named] if named else [])
        assert all(one.high_bytes == 0 > one.low_bytes for one in found.moved)
        assert found.result is Result.FITS


def test_a_loss_without_logits_is_less_than_one_with_a_chunk_of_them(tmp_path: Path) -> None:
    text = (
        "base_model: llama-3.2-1b\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\n"
        "optimizer: adamw_torch\ngradient_accumulation_steps: 1\nsample_packing: true\n"
        "flash_attention: true\ngradient_checkpointing: true\n"
    )
    plugin = "plugins:\n- axolotl.integrations.{}Plugin\n"
    cut = checked(
        tmp_path, {"axolotl.yaml": text + plugin.format("cut_cross_entropy.CutCrossEntropy")}, seq_len=None
    )
    chunk = checked(
        tmp_path,
        {"axolotl.yaml": text + plugin.format("liger.Liger") + "liger_fused_linear_cross_entropy: true\n"},
        seq_len=None,
    )
    whole = checked(tmp_path, {"axolotl.yaml": text}, seq_len=None)
    needs = [one.answer.verdict.device for one in (cut, chunk, whole) if one.answer and one.answer.verdict]
    assert not cut.doubt
    assert needs[0].low <= needs[1].low < needs[2].low
    assert needs[0].high < needs[2].high


@pytest.mark.parametrize("width", [80, 120])
def test_errors_are_as_wide_as_the_screen(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.json").write_text('{"a": 1}')
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    assert main(["check", "data.json"]) == 2
    wrapped = capsys.readouterr().err
    assert max(map(len, wrapped.splitlines())) <= width
    monkeypatch.delenv("COLUMNS")
    assert main(["check", "data.json"]) == 2
    whole = capsys.readouterr().err
    assert whole.split() == wrapped.split()
    assert len(whole.splitlines()) < len(wrapped.splitlines())


TITAN = "[training]\nlocal_batch_size = 1\nseq_len = 512\n[parallelism]\n"


def test_compilation_has_a_table_of_its_own_in_later_toml(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        {
            "titan.toml": TITAN
            + "[compile]\nenable = true\nbackend = 'inductor'\ncomponents = ['model', 'loss']\n"
        },
        model="llama-3.1-8b",
        seq_len=None,
    )
    assert found.answer is not None
    assert found.answer.plan.compile is True
    assert not [one for rule, one in found.mistakes if rule.id == "unknown-key"]
    partly = checked(
        tmp_path,
        {"titan.toml": TITAN + "[compile]\nenable = true\ncomponents = ['loss']\n"},
        model="llama-3.1-8b",
        seq_len=None,
    )
    assert "compile.components" in partly.doubt


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("[fault_tolerence]\nenable = true\n", "fault_tolerance.enable"), ("[weather]\nenable = true\n", ""),
        ("[optimizer]\nimplementatoin = 'fused'\n", "optimizer.implementation"), ("[paralelism]\ntensor_parallel_degre = 2\n", "parallelism.tensor_parallel_degree"),
        ("[weather]\ntensor_parallel_degree = 2\n", ""),
    ],
)  # fmt: skip
def test_a_key_is_offered_where_its_name_and_its_group_are_near(text: str, near: str, tmp_path: Path) -> None:
    found = checked(tmp_path, {"titan.toml": TITAN + text}, model="llama-3.1-8b", seq_len=None)
    assert [held for _, held in found.reads["titan.toml"].unknown] == [near]


def planned(folder: Path, *, zero: int, reduce: str) -> Checked:
    """A plan and the file that export writes of it."""
    full = {"parameters": "fp32", "compute": "bf16", "gradients": "fp32", "reduce": reduce, "moments": "fp32"}
    plan = {
        "schema": "memsheet/plan/1", "model": "llama-3.2-1b", "gpus": "16xA100-80GB", "task": "train", "engine": "fsdp2", "zero": zero, "microbatch": 1,
        "seq_len": 512, "precision": full,
    }  # fmt: skip
    return checked(folder, {"plan.json": plan, "accelerate.yaml": LAUNCH}, gpus="16xA100-80GB", seq_len=None)


def test_what_export_is_known_to_write_otherwise_is_no_mistake(tmp_path: Path) -> None:
    found = planned(tmp_path, zero=3, reduce="fp32")
    assert "files-disagree" not in {rule.id for rule, _ in found.mistakes}
    assert any("accelerate reduces gradients" in line for line in found.assumed)
    assert not any("accelerate reduces" in line for line in planned(tmp_path, zero=3, reduce="bf16").assumed)
    other = planned(tmp_path, zero=2, reduce="bf16")
    assert [one.where for rule, one in other.mistakes if rule.id == "files-disagree"] == ["zero"]


def test_a_lower_stage_is_a_cure_only_where_its_step_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import memsheet.formulas.step_time as times

    for slow, told in ((3, True), (2, False)):
        monkeypatch.setattr(
            times, "quick_s", lambda _, plan, __, slow=slow: 2.0 if plan.zero == slow else 1.0
        )
        found = checked(tmp_path, {"accelerate.yaml": LAUNCH}, gpus="16xA100-80GB", microbatch=1)
        assert ("zero3-where-less-fits" in {rule.id for rule, _ in found.mistakes}) is told


def test_no_cure_says_that_a_plan_fits_which_nobody_knows(tmp_path: Path) -> None:
    held: dict[str, Any] = {
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        **AUTO,
        **WIDTH,
    }
    needless = "offload-without-need"
    assert needless not in {rule.id for rule, _ in checked(tmp_path, {"ds_config.json": held}).mistakes}
    assert needless in {
        rule.id for rule, _ in checked(tmp_path, {"ds_config.json": held}, microbatch=1).mistakes
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "gpus", "width"),
    [
        *((stage, gpus, {}) for stage in (1, 2, 3) for gpus in ("8xL4", "8xA100-40GB", "8xT4", "8xH200")),
        *((2, gpus, {"bf16": {"enabled": "auto"}}) for gpus in ("8xL4", "8xA100-40GB", "8xT4", "8xH200")),
    ],
)
def test_an_open_precision_is_as_sure_as_all_of_them(
    stage: int, gpus: str, width: dict[str, Any], tmp_path: Path
) -> None:
    """What DeepSpeed's file leaves to the script fits for sure in no precision alone, and fails for sure
    where it fails in every one.
    """
    file = {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 2, **width}
    left = checked(tmp_path, {"ds_config.json": file}, gpus=gpus, seq_len=2048)
    said = [
        checked(tmp_path, {"ds_config.json": file}, gpus=gpus, seq_len=2048, **one) for one in EVERY_WIDTH
    ]
    assert left.answer is not None
    assert left.answer.verdict is not None
    needs = [one.answer.verdict.device for one in said if one.answer and one.answer.verdict]
    assert len(needs) == len(EVERY_WIDTH)
    assert (
        left.answer.verdict.device.low <= min(int(need.low) for need in needs)
        or result(left) == "does_not_fit"
    )
    assert (
        left.answer.verdict.device.high >= max(int(need.high) for need in needs)
        or result(left) == "does_not_fit"
    )
    assert result(left) == (
        "does_not_fit" if all(result(one) == "does_not_fit" for one in said) else "uncertain"
    )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_word_beside_a_file_means_what_it_does_to_the_files_engine(stage: int, tmp_path: Path) -> None:
    """DeepSpeed's switch moves the optimizer, and parameters where they are divided; fsdp's moves both."""
    (tmp_path / "ds.json").write_text(
        json.dumps(
            {
                "zero_optimization": {"stage": stage},
                "train_micro_batch_size_per_gpu": 1,
                "bf16": {"enabled": True},
            }
        )
    )
    given: dict[str, Any] = {"gpus": "8xA100-40GB", "seq_len": 512, "cpu_offload": True}
    beside = memsheet.check(tmp_path / "ds.json", model="llama-3.2-1b", **given)
    alone = memsheet.train(
        "llama-3.2-1b", engine="deepspeed", zero=stage, microbatch=1, precision="bf16-master", **given
    )
    assert beside.answer is not None, beside.why_not
    assert beside.answer.plan.offload == alone.plan.offload
    assert bool(beside.answer.plan.offload.parameters) is (stage == 3)
    (tmp_path / "fsdp.yaml").write_text(LAUNCH)
    others = memsheet.check(tmp_path / "fsdp.yaml", model="llama-3.2-1b", **{**given, "gpus": "16xA100-40GB"})
    assert others.answer is not None, others.why_not
    assert others.answer.plan.offload.parameters


@pytest.mark.parametrize("switch", ["liger_rope", "liger_rms_norm", "liger_glu_activation"])
def test_kernels_that_only_save_leave_a_job_that_fits_sure(tmp_path: Path, switch: str) -> None:
    (tmp_path / "a.yml").write_text(
        f"base_model: NousResearch/Llama-3.2-1B\nsequence_len: 512\nmicro_batch_size: 1\n{switch}: true\n"
        "gradient_accumulation_steps: 1\noptimizer: adamw_torch_fused\nbf16: true\nflash_attention: true\n"
    )
    fits, not_sure = (memsheet.check(tmp_path / "a.yml", gpus=f"1x{card}") for card in ("H100-80GB", "10GiB"))
    assert fits.answer is not None
    assert fits.answer.verdict is not None
    assert (fits.answer.verdict.result.value, fits.doubt) == ("fits", "")
    assert switch in not_sure.doubt


# ---- what a server's flag that nobody accounts may take away --------------------

KEPT_WEIGHTS = {
    "a slip of the pen": "--foo 3", "pictures of a prompt": """--limit-mm-per-prompt '{"image": 4}'""", "a scheduler's": "--max-num-active-seqs 3",
    "vectors in place of tokens": "--pooler-config x",
}  # fmt: skip
TAKEN_WEIGHTS = {
    "moved": "--cpu-offload-params q_proj", "in fewer bits": "--quantization-config x", "another configuration": "--hf-overrides '{}'",
    "code of one's own": "--worker-cls mine.Worker",
}  # fmt: skip


@pytest.mark.parametrize("flag", [*KEPT_WEIGHTS, *TAKEN_WEIGHTS])
def test_what_a_servers_flag_may_take_off_has_a_bound(tmp_path: Path, flag: str) -> None:
    """Weights that are more than a card has stay so, unless the flag may move or store them otherwise."""
    typed = {**KEPT_WEIGHTS, **TAKEN_WEIGHTS}[flag]
    (tmp_path / "serve.sh").write_text(f"vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 2 {typed}\n")
    found = memsheet.check(tmp_path / "serve.sh", gpus="2xRTX4090")
    assert found.result is (Result.DOES_NOT_FIT if flag in KEPT_WEIGHTS else Result.UNCERTAIN)
    assert typed.split()[0] in found.doubt
    assert found.answer is not None
    assert found.answer.verdict is not None
    sheet = found.answer.sheets[0]
    weights = sheet.of(Component.PARAMETERS, instant=Instant.LOAD).low
    head = found.answer.model.vocab * found.answer.model.hidden * 2
    assert (found.answer.verdict.device.low >= weights - head) is (flag in KEPT_WEIGHTS)


def test_a_flag_that_may_leave_out_a_tower_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen2.5-VL-7B-Instruct --mm-encoder-tp-mode data\n")
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xH100-80GB")
    assert found.answer is not None
    assert found.answer.verdict is not None
    weights = found.answer.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD).low
    tower = 2 * tower_parameters(found.answer.model)
    assert tower > 0
    assert weights - tower <= found.answer.verdict.device.low < weights
