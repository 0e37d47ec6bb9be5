"""Rules of the lint for DeepSpeed's groups, Megatron-LM's flags, the Trainer's arguments and the shape of a
job: each finds its mistake, and the same files mended are silent.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.exchange.mistakes.megatron import MEGATRON
from memsheet.exchange.mistakes.shape import SHAPE
from memsheet.exchange.mistakes.trainer import TRAINER
from memsheet.exchange.mistakes.zero import ZERO
from memsheet.questions.check import check_configuration_files
from memsheet.report.shared.checked import Checked

WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
}
Case = tuple[Mapping[str, str], Mapping[str, str], Mapping[str, Any]]
"""Files with the mistake, files without, and what a command line says of both."""


def ds(zero: Mapping[str, Any] = {}, **more: Any) -> dict[str, str]:
    held = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "bf16": {"enabled": True}}
    return {"ds_config.json": json.dumps({**held, "zero_optimization": {"stage": 2, **zero}, **more})}


def host(device: str = "cpu", **more: Any) -> dict[str, Any]:
    return {"stage": 3, "offload_optimizer": {"device": device, **more}}


SOUND = {
    "--tensor-model-parallel-size": 2, "--sequence-parallel": True, "--use-distributed-optimizer": True, "--micro-batch-size": 1, "--seq-length": 2048,
    "--global-batch-size": 32, "--bf16": True, "--hidden-dropout": 0, "--attention-dropout": 0,
}  # fmt: skip


def flags(*, connections: bool = True, **changes: Any) -> dict[str, str]:
    """A script of Megatron-LM; ``a_b=None`` leaves ``--a-b`` out."""
    said = {**SOUND, **{f"--{name.replace('_', '-')}": value for name, value in changes.items()}}
    words = " ".join(
        at if value is True else f"{at} {value}" for at, value in said.items() if value is not None
    )
    exported = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" if connections else ""
    return {"pretrain.sh": f"#!/bin/bash\n{exported}torchrun --nproc-per-node=8 pretrain_gpt.py {words}\n"}


def args(**changes: Any) -> dict[str, str]:
    held = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "bf16": True, **changes}
    return {"args.yaml": "".join(f"{name}: {json.dumps(value)}\n" for name, value in held.items())}


def spread(maps: str) -> dict[str, str]:
    text = (
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        f"model = AutoModelForCausalLM.from_pretrained('meta-llama/Llama-3.2-1B', device_map='{maps}')\n"
        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1, bf16=True)\n"
        "Trainer(model=model, args=args).train()\n"
    )
    return {"run.sh": "torchrun --nproc_per_node 8 train.py\n", "train.py": text}


def halved(switch: str) -> dict[str, str]:
    text = (
        "import torch\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('meta-llama/Llama-3.2-1B', torch_dtype=torch.float16)\n"
        f"args = TrainingArguments(output_dir='o', per_device_train_batch_size=1, {switch})\n"
        "Trainer(model=model, args=args).train()\n"
    )
    return {"train.py": text}


def unslothed(how: str) -> dict[str, str]:
    text = (
        "from trl import SFTConfig, SFTTrainer\nfrom unsloth import FastLanguageModel\n"
        "model, _ = FastLanguageModel.from_pretrained('unsloth/Llama-3.2-1B', load_in_4bit=True)\n"
        "model = FastLanguageModel.get_peft_model(model, r=8, target_modules=['q_proj'])\n"
        f"SFTTrainer(model=model, args=SFTConfig('o', per_device_train_batch_size=1, {how}=True)).train()\n"
    )
    return {"train.py": text}


def axolotl(adapter: str) -> dict[str, str]:
    rest = "lora_r: 8\nlora_target_linear: true\nmicro_batch_size: 1\nsequence_len: 2048\n"
    said = f"base_model: meta-llama/Llama-3.2-1B\nadapter: {adapter}\nload_in_4bit: true\nbf16: true\n"
    return {"axolotl.yaml": f"{said}{rest}"}


def factory(method: str) -> dict[str, str]:
    bits = (
        "quantization_bit: 4\nfinetuning_type: lora\nbf16: true\ncutoff_len: 2048\nstage: "
        "sft\ndo_train: true\n"
    )
    return {
        "args.yaml": (
            "model_name_or_path: meta-llama/Llama-3.2-1B\nper_device_train_batch_size: "
            f"1\n{bits}quantization_method: {method}\n"
        )
    }


def fsdp(**changes: Any) -> dict[str, str]:
    held = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **changes,
    }
    return {
        "accelerate.yaml": json.dumps(
            {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8, "fsdp_config": held}
        )
    }


def titan(**changes: Any) -> dict[str, str]:
    held: dict[str, dict[str, Any]] = {
        "training": {"local_batch_size": 1},
        "parallelism": {"tensor_parallel_degree": 2},
    }
    for at, value in changes.items():
        table, name = at.split("__")
        held.setdefault(table, {})[name] = value
    tables = (
        "\n".join((f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in rows.items())))
        for table, rows in held.items()
    )
    return {"titan.toml": "\n".join(tables) + "\n"}


def both(*files: Mapping[str, str]) -> dict[str, str]:
    return {name: text for held in files for name, text in held.items()}


BIG = {"model": "llama-3.1-8b"}
CASES: dict[str, Case] = {
    "batch-product": (ds(train_batch_size=63, gradient_accumulation_steps=4), ds(train_batch_size=32, gradient_accumulation_steps=4), {}),
    "recompute-not-switched": (ds(activation_checkpointing={"profile": False}), ds(), {}),
    "partition-without-tp": (ds(activation_checkpointing={"partition_activations": True}), ds(activation_checkpointing={"profile": True}), {}),
    "contiguous-without-partition": (
        ds(activation_checkpointing={"contiguous_memory_optimization": True}),
        ds(activation_checkpointing={"contiguous_memory_optimization": True, "partition_activations": True}), {},
    ),
    "torch-optimizer-on-host": (ds(host(), zero_force_ds_cpu_optimizer=False), ds(host(), zero_force_ds_cpu_optimizer=True), {}),
    "live-above-model": (ds({"stage": 3, "stage3_max_live_parameters": 10_000_000_000}), ds({"stage": 3, "stage3_max_live_parameters": 500_000_000}), BIG),
    "unpinned-offload": (ds(host(pin_memory=False)), ds(host(pin_memory=True)), {}),
    "pinned-above-host": (ds(host()), ds(host(pin_memory=False)), {"host_memory": "20GiB"}),
    "nvme-without-folder": (ds(host("nvme")), ds(host("nvme", nvme_path="/local_nvme")), {}),
    "scattered-gradients": (ds({"contiguous_gradients": False}), ds({"contiguous_gradients": True}), {}),
    "timers-wait": (ds(wall_clock_breakdown=True), ds(wall_clock_breakdown=False), {}),
    "gather-at-save": (
        ds({"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}), ds({"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}),
        {"host_memory": "2GiB"},
    ),
    "states-on-every-rank": (flags(use_distributed_optimizer=None), flags(), {}),
    "muon-with-shards": (flags(optimizer="muon"), flags(optimizer="dist_muon", use_distributed_optimizer=None), {}),
    "no-sequence-parallel": (flags(sequence_parallel=None), flags(), {}),
    "recompute-overruled": (flags(recompute_activations=True, recompute_granularity="full"), flags(recompute_activations=True), {}),
    "recompute-half-said": (
        flags(recompute_granularity="full", recompute_method="uniform"),
        flags(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1), {},
    ),
    "switch-needs-another": (flags(overlap_param_gather=True), flags(overlap_param_gather=True, overlap_grad_reduce=True), {}),
    "one-connection": (flags(connections=False), flags(), {}),
    "graphs-not-captured": (flags(cuda_graph_scope="attn"), flags(external_cuda_graph=True, cuda_graph_scope="attn"), {}),
    "legacy-flash-switch": (flags(use_flash_attn=True), flags(attention_backend="flash"), {}),
    "attention-keeps-scores": (flags(transformer_impl="local"), flags(transformer_impl="transformer_engine"), {}),
    "loss-per-microbatch": (flags(eod_mask_loss=True), flags(eod_mask_loss=True, calculate_per_token_loss=True), {}),
    "dropout-by-default": (flags(hidden_dropout=None, attention_dropout=None), flags(), {}),
    "large-evaluation": (
        args(eval_strategy="steps", gradient_checkpointing=True),
        args(eval_strategy="steps", gradient_checkpointing=True, per_device_eval_batch_size=1), {},
    ),
    "predictions-on-gpu": (args(eval_strategy="steps"), args(eval_strategy="steps", prediction_loss_only=True), {}),
    "empties-cache": (args(torch_empty_cache_steps=1), args(torch_empty_cache_steps=100), {}),
    "finds-batch": (args(auto_find_batch_size=True), args(auto_find_batch_size=False), {}),
    "loss-per-rank": (args(average_tokens_across_devices=False), args(average_tokens_across_devices=True), {}),
    "label-smoothing": (args(label_smoothing_factor=0.1), args(label_smoothing_factor=0.0), {}),
    "recomputes-twice": (
        args(gradient_checkpointing=True, fsdp=True, fsdp_config={"activation_checkpointing": True}),
        args(gradient_checkpointing=False, fsdp=True, fsdp_config={"activation_checkpointing": True}), {},
    ),
    "spread-over-ranks": (spread("auto"), spread("cuda"), {}),
    "bf16-without-units": (unslothed("bf16"), unslothed("fp16"), {"gpus": "1xT4", "seq_len": 512}),
    "scaled-fp16": (halved("fp16=True"), halved("bf16=True"), {"gpus": "1xA100-80GB"}),
    "bits-without-adapter": (axolotl("lora"), axolotl("qlora"), {"gpus": "1xA100-80GB"}),
    "caches-and-recomputes": (args(use_cache=True, gradient_checkpointing=True), args(use_cache=False, gradient_checkpointing=True), {}),
    "reentrant-recompute": (
        args(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}),
        args(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}), {},
    ),
    "unsynchronised-loading": (fsdp(fsdp_sync_module_states=False), fsdp(fsdp_sync_module_states=True), {}),
    "every-rank-loads": (fsdp(fsdp_cpu_ram_efficient_loading=False), fsdp(), {}),
    "every-rank-builds": (
        {"a.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: false\n"},
        {"a.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: true\n"}, {},
    ),
    "whole-checkpoint": (fsdp(fsdp_state_dict_type="FULL_STATE_DICT"), fsdp(fsdp_state_dict_type="SHARDED_STATE_DICT"), {}),
    "list-by-list-optimizer": (
        args(optim="adamw_torch"), args(optim="adamw_torch_fused"), {"gpus": "1xA100-80GB", "recompute.mode": "full", "seq_len": 256},
    ),
    "older-spelling": (factory("bitsandbytes"), factory("bnb"), {"gpus": "1xA100-80GB"}),
    "starved-pipeline": (
        flags(pipeline_model_parallel_size=4, global_batch_size=2), flags(pipeline_model_parallel_size=4, global_batch_size=32), {},
    ),
    "tp-across-nodes": (
        flags(tensor_model_parallel_size=16), flags(tensor_model_parallel_size=8), {"gpus": "16xA100-80GB", "model": "llama-3-70b", "launch": 16},
    ),
    "recompute-without-need": (args(gradient_checkpointing=True), args(), {}),
    "beyond-positions": (args(), args(), {"seq_len": 200_000}),
    "gathered-logits": (titan(parallelism__disable_loss_parallel=True), titan(), BIG),
    "async-tp-uncompiled": (
        titan(parallelism__enable_async_tensor_parallel=True), titan(parallelism__enable_async_tensor_parallel=True, training__compile=True), {},
    ),
}  # fmt: skip


def checked(folder: Path, files: Mapping[str, str], options: Mapping[str, Any]) -> Checked:
    asked: dict[str, Any] = {"seq_len": 2048, **options}
    model, gpus = asked.pop("model", "llama-3.2-1b"), asked.pop("gpus", "8xA100-80GB")
    where = {**WHERE, "gpus": gpus, "host_memory": asked.pop("host_memory", None)}
    launch = asked.pop("launch", None)
    folder.mkdir()
    for name, text in files.items():
        nodes = f"--nnodes={launch // 8} --nproc-per-node=8" if launch else "--nproc-per-node=8"
        (folder / name).write_text(text.replace("--nproc-per-node=8", nodes))
    if any(name.endswith((".sh", ".toml")) for name in files) and "seq_len" not in options:
        asked.pop("seq_len")
        asked |= {"seq_len": 2048} if any(name.endswith(".toml") for name in files) else {}
    return check_configuration_files((str(folder),), model, where, asked)


def rules(found: Checked) -> set[str]:
    return {rule.id for rule, _ in found.mistakes}


CASES_ELSEWHERE = {"packs-whole", "unconverted-float8"}
"""Rules of two files, or of a table by another name: in test_trainer_rules and test_unconverted."""


def test_every_rule_has_a_case_and_a_source() -> None:
    own = (*ZERO, *MEGATRON, *TRAINER, *SHAPE)
    assert set(CASES) | CASES_ELSEWHERE == {rule.id for rule in own}
    assert all(len(rule.source) > 10 for rule in own)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_its_mistake_and_no_other(rule: str, tmp_path: Path) -> None:
    wrong, right, options = CASES[rule]
    found = checked(tmp_path / "wrong", wrong, options)
    assert rule in rules(found)
    assert all(one.cure and one.says and one.where for _, one in found.mistakes)
    mended = {**options, "seq_len": 1024} if rule == "beyond-positions" else options
    assert rule not in rules(checked(tmp_path / "right", right, mended))


STOPS = {
    "batch-product",
    "scaled-fp16", "bf16-without-units",
    "recomputes-twice",
    "spread-over-ranks",
    "nvme-without-folder", "recompute-half-said", "switch-needs-another", "unsynchronised-loading", "async-tp-uncompiled",
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_what_the_engine_refuses_stops(rule: str, tmp_path: Path) -> None:
    found = checked(tmp_path / "wrong", CASES[rule][0], CASES[rule][2])
    assert any(one.stops for held, one in found.mistakes if held.id == rule) is (rule in STOPS)


WEIGHED = {
    "recompute-not-switched", "states-on-every-rank", "no-sequence-parallel", "recompute-overruled", "dropout-by-default", "list-by-list-optimizer",
    "gathered-logits",
}  # fmt: skip


@pytest.mark.parametrize("rule", sorted(WEIGHED))
def test_a_cure_that_a_plan_can_say_has_its_bytes(rule: str, tmp_path: Path) -> None:
    found = checked(tmp_path / "wrong", CASES[rule][0], CASES[rule][2])
    (one,) = [one for held, one in found.mistakes if held.id == rule]
    assert one.changes
    assert one.saves_bytes is not None
    assert one.saves_bytes > 0


def test_the_bytes_of_a_distributed_optimizer_are_those_of_the_mended_script(tmp_path: Path) -> None:
    wrong, right, options = CASES["states-on-every-rank"]
    found, mended = checked(tmp_path / "wrong", wrong, options), checked(tmp_path / "right", right, options)
    (one,) = [one for held, one in found.mistakes if held.id == "states-on-every-rank"]
    assert found.answer is not None
    assert mended.answer is not None
    assert one.saves_bytes == found.answer.sheets[0].device.value - mended.answer.sheets[0].device.value


@pytest.mark.parametrize(
    ("optimizer", "shards", "found", "fits"),
    [("dist_muon", None, set(), "fits"), ("muon", None, {"states-on-every-rank"}, "fits"), ("muon", True, {"muon-with-shards"}, "uncertain"), ("adam", True, set(), "fits")],
)  # fmt: skip
def test_muon_is_dealt_by_its_name_in_every_release(
    optimizer: str, shards: bool | None, found: set[str], fits: str, tmp_path: Path
) -> None:
    files = flags(optimizer=optimizer, use_distributed_optimizer=shards)
    said = checked(tmp_path / "a", files, {})
    assert rules(said) & {"states-on-every-rank", "muon-with-shards"} == found
    assert said.answer is not None
    assert said.answer.verdict is not None
    assert said.answer.verdict.result.value == fits
    gathers = flags(
        optimizer=optimizer,
        use_distributed_optimizer=shards,
        overlap_param_gather=True,
        overlap_grad_reduce=True,
    )
    stops = "switch-needs-another" in rules(checked(tmp_path / "b", gathers, {}))
    assert stops is (optimizer == "muon" and not shards)


def test_recompute_that_is_overruled_with_a_method_stops(tmp_path: Path) -> None:
    files = flags(
        recompute_activations=True,
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
    )
    assert checked(tmp_path / "a", files, {}).stops


def test_a_batch_cannot_be_found_at_the_third_stage(tmp_path: Path) -> None:
    files = both(
        args(auto_find_batch_size=True, deepspeed="ds_config.json", gradient_accumulation_steps=8),
        ds({"stage": 3}),
    )
    assert any(
        one.stops for rule, one in checked(tmp_path / "a", files, {}).mistakes if rule.id == "finds-batch"
    )


def test_a_fixed_scale_of_megatron(tmp_path: Path) -> None:
    assert "fixed-loss-scale" in rules(
        checked(tmp_path / "a", flags(bf16=None, fp16=True, loss_scale=128), {})
    )
    assert "fixed-loss-scale" not in rules(checked(tmp_path / "b", flags(bf16=None, fp16=True), {}))


def test_whole_logits_are_cured_in_the_engines_own_words(tmp_path: Path) -> None:
    found = {
        rule.id: one
        for rule, one in checked(
            tmp_path / "a",
            flags(micro_batch_size=4, tensor_model_parallel_size=1, sequence_parallel=None),
            {},
        ).mistakes
    }
    assert "--cross-entropy-loss-fusion" in found["whole-logits"].cure
    assert (found["whole-logits"].saves_bytes or 0) > 0


def test_logits_of_a_loss_in_pieces_are_no_mistake_where_the_sheet_alone_is_whole(tmp_path: Path) -> None:
    script = (
        "from trl import SFTTrainer, SFTConfig\nfrom peft import LoraConfig\n"
        'c = LoraConfig(r=8, modules_to_save=["lm_head"], target_modules="all-linear")\n'
        'args = SFTConfig(output_dir="o", max_length=2048, per_device_train_batch_size=1, bf16=True, LOSS)\n'
        't = SFTTrainer(model="meta-llama/Llama-3.2-1B", args=args, peft_config=c, train_dataset=None)\n'
        "t.train()\n"
    )
    for word, whole in (("loss_type='chunked_nll'", False), ("loss_type='nll'", True)):
        said = checked(tmp_path / word, {"tt.py": script.replace("LOSS", word)}, {"gpus": "1xA100-80GB"})
        assert said.answer is not None
        assert said.answer.plan.loss.value == "plain"
        assert ("whole-logits" in rules(said)) is whole


def test_recompute_of_some_layers_is_work_of_theirs(tmp_path: Path) -> None:
    full = {"recompute_granularity": "full", "recompute_num_layers": 10}
    for method, said in (("block", "10 of 16 layers run"), ("uniform", "every layer runs")):
        found = checked(tmp_path / method, flags(**full, recompute_method=method), {})
        (one,) = [one for rule, one in found.mistakes if rule.id == "recompute-without-need"]
        assert one.says.startswith(said)


def test_torchtitan_that_keeps_gathered_parameters(tmp_path: Path) -> None:
    files = titan(parallelism__fsdp_reshard_after_forward="never", parallelism__tensor_parallel_degree=1)
    found = {rule.id: one for rule, one in checked(tmp_path / "a", files, {"model": "llama-3-70b"}).mistakes}
    assert "always" in found["no-reshard"].cure
    assert "no-reshard" not in rules(
        checked(tmp_path / "b", titan(parallelism__tensor_parallel_degree=1), {"model": "llama-3-70b"})
    )


@pytest.mark.parametrize(
    ("synchronised", "loads"), [(False, None), (True, None), (False, False), ("false", None)]
)
def test_the_launcher_itself_refuses_weights_that_are_not_sent_on(
    synchronised: Any, loads: Any, tmp_path: Path
) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils.launch import prepare_multi_gpu_env

    flags_of = launch.launch_command_parser().parse_args(
        ["--use_fsdp", "--num_processes", "2", "--mixed_precision", "bf16", "--num_machines", "1", "x.py"]
    )
    told = {
        "fsdp_sync_module_states": synchronised,
        **({"fsdp_cpu_ram_efficient_loading": loads} if loads is not None else {}),
    }
    for name, value in {**told, "dynamo_backend": "no"}.items():
        setattr(flags_of, name, value)
    if checked(tmp_path / "a", fsdp(**told), {}).stops:
        with pytest.raises(ValueError, match="fsdp_sync_module_states"):
            prepare_multi_gpu_env(flags_of)
    else:
        prepare_multi_gpu_env(flags_of)


DEFAULTS = {
    "per_device_eval_batch_size": 8, "eval_accumulation_steps": None, "prediction_loss_only": False, "batch_eval_metrics": False, "use_cache": False,
    "torch_empty_cache_steps": None, "auto_find_batch_size": False, "average_tokens_across_devices": True, "label_smoothing_factor": 0.0,
    "eval_strategy": "no",
}  # fmt: skip


def test_what_the_rules_take_for_a_default_is_one() -> None:
    arguments = pytest.importorskip("transformers.training_args").TrainingArguments
    import dataclasses

    own = {held.name: held.default for held in dataclasses.fields(arguments)}
    assert {name: getattr(own[name], "value", own[name]) for name in DEFAULTS} == DEFAULTS


def test_an_evaluation_that_may_not_fit_leaves_no_sure_verdict(tmp_path: Path) -> None:
    own: dict[str, Any] = {"gpus": "1xA100-40GB", "seq_len": 4096}
    large = args(gradient_checkpointing=True, eval_strategy="steps", per_device_eval_batch_size=16)
    small = args(gradient_checkpointing=True, eval_strategy="steps", per_device_eval_batch_size=1)
    sure, unsure = checked(tmp_path / "small", small, own), checked(tmp_path / "large", large, own)
    assert sure.result is not None
    assert unsure.result is not None
    assert (sure.result.value, unsure.result.value) == ("fits", "uncertain")
    assert "per_device_eval_batch_size" in unsure.doubt


RECOMPUTED = {
    "ds": {
        **ds({"stage": 3}, activation_checkpointing={}),
        "args.yaml": args(gradient_checkpointing=True, per_device_train_batch_size=2)["args.yaml"],
    },
    "megatron": flags(
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1, seq_length=None
    ),
    "titan": titan(training__local_batch_size=2),
    "fsdp": {
        **fsdp(fsdp_activation_checkpointing=True),
        "args.yaml": args(per_device_train_batch_size=2)["args.yaml"],
    },
}


@pytest.mark.parametrize("job", RECOMPUTED)
def test_mistakes_without_a_length_are_those_at_the_sheets_own(job: str, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in RECOMPUTED[job]]
    for path in paths:
        path.write_text(RECOMPUTED[job][path.name])
    question = {**WHERE, "gpus": "8xA100-80GB"}

    def told(**length: int) -> tuple[int, list[tuple[str, int | None]]]:
        checked = check_configuration_files(tuple(map(str, paths)), "llama-3.1-8b", dict(question), length)
        assert checked.answer is not None
        return int(checked.answer.plan.training.seq_len or 0), [
            (rule.id, found.saves_bytes) for rule, found in checked.mistakes
        ]

    taken, mistakes = told()
    assert mistakes == told(seq_len=taken)[1]


@pytest.mark.parametrize(
    ("asked", "rule", "stops", "doubt"),
    [
        ({"cuda_graph_scope": "attn"}, "graphs-not-captured", False, ""),
        ({"cuda_graph_modules": "attn"}, "graphs-not-captured", False, ""),
        ({"cuda_graph_scope": "full_iteration"}, "graphs-not-captured", False, "full_iteration"),
        ({"external_cuda_graph": True, "cuda_graph_scope": "atn"}, "value-not-taken", True, ""),
        ({"cuda_graph_impl": "transformer_engin"}, "value-not-taken", True, ""),
        ({"cuda_graph_impl": "foo"}, "value-not-taken", False, ""),
        ({"external_cuda_graph": True, "cuda_graph_scope": "attn"}, "", False, ""),
    ],
)
def test_graphs_that_nobody_captures_and_words_that_name_none(
    asked: dict[str, Any], rule: str, stops: bool, doubt: str, tmp_path: Path
) -> None:
    found = checked(tmp_path / "a", flags(**asked), {})
    told = {
        one.id: mistake
        for one, mistake in found.mistakes
        if one.id in ("graphs-not-captured", "value-not-taken")
    }
    assert list(told) == [rule][: bool(rule)]
    assert found.stops is stops
    assert doubt in found.doubt


LABELLED = """from transformers import {head}, AutoTokenizer, Trainer, TrainingArguments
model = {head}.from_pretrained("roberta-large"{labels})
args = TrainingArguments("o", per_device_train_batch_size=16, eval_strategy="steps", fp16=True)
Trainer(model=model, args=args, train_dataset=train, eval_dataset=held, compute_metrics=compute_metrics).train()
"""


@pytest.mark.parametrize(
    ("head", "labels", "found"),
    [("AutoModelForSequenceClassification", ", num_labels=5", False), ("AutoModelForMaskedLM", "", True)],
)
def test_predictions_of_a_few_labels_take_no_room(
    tmp_path: Path, head: str, labels: str, *, found: bool
) -> None:
    (tmp_path / "train.py").write_text(LABELLED.format(head=head, labels=labels))
    checked = memsheet.check(tmp_path / "train.py", gpus="1xL4", seq_len=512)
    assert ("predictions-on-gpu" in {rule.id for rule, _ in checked.mistakes}) is found
