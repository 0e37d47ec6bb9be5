"""A training script's ``TrainingArguments``, read from its text, and mistakes of its order."""

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.mistakes.scripts import SCRIPTS
from memsheet.exchange.plan_files import write_format_files
from memsheet.exchange.shared.file_format import UNSET, FileReading
from memsheet.exchange.shared.prepared_base import prepared_bytes
from memsheet.guard import parse_json, parse_yaml
from memsheet.questions.check import check_configuration_files
from memsheet.questions.recognised_files import recognise_files
from memsheet.report.shared.checked import Checked

PARSERS = {"json": parse_json, "yaml": parse_yaml}
WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
    "gpus": "8xA100-80GB",
}
ARGS = (
    'args = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=4 * 2, '
    'bf16=True, optim="adamw_torch")\n'
)


def reading(text: str) -> FileReading:
    return read_text("train.py", text, PARSERS)


def checked(folder: Path, text: str) -> Checked:
    (folder / "train.py").write_text(text)
    return check_configuration_files((str(folder / "train.py"),), "llama-3.2-1b", WHERE, {"seq_len": 512})


def test_arguments_of_a_script() -> None:
    found = reading(
        f"BATCH = 2\n\ndef main():\n    {ARGS.replace('=2,', '=BATCH,')}    Trainer(model, "
        "args).train()\n\nmain()\n"
    )
    assert (found.form.name, found.unknown, found.unmodelled) == ("transformers", (), ())
    wanted = {
        "microbatch": 2,
        "@accumulation": 8,
        "precision.compute": "bf16",
        "optimizer.implementation": "foreach",
    }
    assert {key: found.request.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("model.gradient_checkpointing_enable()", "recompute.mode", "full"), ("config = LoraConfig(r=16, lora_alpha=32)", "adapter.rank", 16),
        ("config = LoraConfig(target_modules='all-linear')", "adapter.targets", ["all-linear"]), ("apply_liger_kernel_to_llama()", "loss", "fused"),
        ("config = LoraConfig(target_modules=['q_proj', 'v_proj'])", "adapter.targets", ["q_proj", "v_proj"]), ("config = LoraConfig()", "adapter.rank", 8),
        ("config = LoraConfig(use_dora=True)", "adapter.kind", "dora"),
        ("config = IA3Config(task_type='CAUSAL_LM')", "adapter.kind", "ia3"), ("config = VeraConfig(r=256)", "adapter.kind", "vera"),
        ("config = IA3Config(target_modules=['k_proj', 'down_proj'], feedforward_modules=['down_proj'])", "adapter.targets", ["k_proj", "down_proj"]),
        ("config = PromptTuningConfig(num_virtual_tokens=20, prompt_tuning_init='TEXT')", "adapter.prompt_length", 20),
        ("config = PromptEncoderConfig(num_virtual_tokens=20, encoder_hidden_size=128)", "adapter.encoder_width", 128),
        ("config = PromptEncoderConfig(num_virtual_tokens=20, encoder_reparameterization_type='MLP')", "adapter.kind", "p-tuning"),
        ("config = LoHaConfig(r=16, alpha=32, target_modules=['q_proj'])", "adapter.rank", 16), ("config = LoKrConfig()", "adapter.kind", "lokr"),
        ("config = LNTuningConfig(target_modules=['norm'])", "adapter.targets", ["norm"]),
        ("config = PrefixTuningConfig(num_virtual_tokens=30)", "adapter.kind", "prefix-tuning"),
        ("config = PrefixTuningConfig(num_virtual_tokens=30, prefix_projection=True, encoder_hidden_size=128)", "adapter.encoder_width", 128),
        ("config = PrefixTuningConfig(num_virtual_tokens=30, prefix_projection=True)", "adapter.kind", "prefix-projection"),
        ("config = AdaLoraConfig(init_r=12, target_r=8, total_step=1000, lora_alpha=32)", "adapter.rank", 12), ("config = OFTConfig(oft_block_size=64)", "adapter.block_size", 64),
        ("m = AutoModelForCausalLM.from_pretrained(x, attn_implementation='flash_attention_2')", "attention", "flash"),
        ("m = AutoModelForCausalLM.from_pretrained(x, torch_dtype=torch.bfloat16)", "precision.moments", "bf16"),
    ],
)  # fmt: skip
def test_what_a_script_says_beside_its_arguments(line: str, key: str, value: Any) -> None:
    found = reading(f"import torch\n{line}\n{ARGS}")
    assert found.request[key] == value
    assert (found.unknown, found.unmodelled) == ((), ())


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("q = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')", "nf4"),
        ("q = BitsAndBytesConfig(load_in_8bit=True)", "int8"),
    ],
)
def test_a_base_in_fewer_bits_has_adapters_that_nobody_tells(line: str, value: str) -> None:
    found = reading(f"import torch\n{line}\n{ARGS}")
    assert found.request["quantization.weights"] == value
    assert found.unknown == ()
    assert [at for at, _ in found.unmodelled] == ["script.lora_rank"]


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("config = LoraConfig(r=8, use_rslora=True, layers_pattern='h')", "script.LoraConfig"), ("config = LoraConfig(target_modules=chosen)", "script.LoraConfig"),
        ("q = BitsAndBytesConfig(load_in_4bit=flag)", "script.BitsAndBytesConfig"),
        ("m = AutoModelForCausalLM.from_pretrained(x, torch_dtype=half)", "script.dtype"),
        ("config = LoraConfig(r=rank)", "script.lora_rank"), ("config = PromptTuningConfig(num_virtual_tokens=tokens)", "script.prompt_length"),
        ("config = AdaLoraConfig(init_r=12, total_step=9)\nmodel.base_model.update_and_allocate(step)", "script.AdaLoraConfig"),
        ("config = OFTConfig(r=8, oft_block_size=0)", "script.OFTConfig"), ("config = OFTConfig(block_share=True)", "script.OFTConfig"),
        ("config = LoHaConfig(r=16, module_dropout=0.1)", "script.LoHaConfig"), ("config = LoKrConfig(decompose_both=True)", "script.LoKrConfig"),
        ("config = PrefixTuningConfig(num_virtual_tokens=30, token_dim=64)", "script.PrefixTuningConfig"), ("config = PrefixTuningConfig(num_virtual_tokens=30, prefix_projection=flag)", "script.PrefixTuningConfig"),
        ("config = PromptEncoderConfig(num_virtual_tokens=20, encoder_reparameterization_type='LSTM')", "script.PromptEncoderConfig"),
        ("config = IA3Config(target_modules=['k_proj', 'up_proj'], feedforward_modules=['up_proj'])", "script.IA3Config"),
    ],
)  # fmt: skip
def test_what_is_not_accounted_is_told(line: str, at: str) -> None:
    assert at in dict(reading(f"{line}\n{ARGS}").unmodelled)


@pytest.mark.parametrize(
    "bits",
    [
        "load_in_8bit=True",
        "load_in_4bit=True",
        "load_in_4bit=True, bnb_4bit_quant_type='nf4'",
        "load_in_4bit=flag",
    ],
)
@pytest.mark.parametrize("more", ["", "torch_dtype=torch.bfloat16, ", "load_in_8bit=False, "])
def test_bits_as_keywords_are_read_as_a_configuration_of_them(bits: str, more: str) -> None:
    if "load_in_8bit" in more and "load_in_8bit" in bits:
        more = "load_in_4bit=False, "
    keywords = reading(f"m = AutoModelForCausalLM.from_pretrained('a/b', {more}{bits})\n{ARGS}")
    named = reading(
        "m = AutoModelForCausalLM.from_pretrained('a/b', "
        f"{more}quantization_config=BitsAndBytesConfig({bits}))\n{ARGS}"
    )
    assert (keywords.request, keywords.unmodelled, keywords.unknown) == (
        named.request,
        named.unmodelled,
        named.unknown,
    )
    assert "quantization.weights" in keywords.request or keywords.unmodelled


def test_bits_that_are_off_quantize_nothing() -> None:
    plain = reading(f"m = AutoModelForCausalLM.from_pretrained('a/b')\n{ARGS}")
    off = reading(
        f"m = AutoModelForCausalLM.from_pretrained('a/b', load_in_8bit=False, load_in_4bit=None)\n{ARGS}"
    )
    assert (off.request, off.unmodelled) == (plain.request, plain.unmodelled)


def test_a_value_that_is_not_in_the_text_is_not_sure() -> None:
    found = reading(ARGS.replace("bf16=True", "bf16=is_supported()").replace("optim=", "**more, optim="))
    assert dict(found.unmodelled) == {"bf16": UNSET, "**": UNSET}


def test_the_last_arguments_are_taken() -> None:
    found = reading(ARGS + ARGS.replace("=2,", "=3,"))
    assert found.request["microbatch"] == 3
    assert "the last of 2" in str(found.values["script.reads"])


def test_what_is_written_reads_back() -> None:
    asked = {
        "task": "train", "engine": "fsdp2", "zero": 3, "microbatch": 4, "optimizer.name": "adamw", "optimizer.implementation": "fused", "precision.compute": "bf16",
        "precision.parameters": "fp32", "precision.gradients": "fp32", "precision.reduce": "bf16", "precision.moments": "fp32", "recompute.mode": "full",
        "attention": "sdpa", "@gpus": 8, "@nodes": 1, "@per_node": 8, "@accumulation": 2, "@model": "m", "seq_len": 512,
    }  # fmt: skip
    files = write_format_files(find_format("transformers"), asked)
    plain, script = (
        read_text(name, files[name], PARSERS) for name in ("training_args.yaml", "training_args.py")
    )
    assert plain.request == script.request
    assert script.unmodelled == ()


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    assert reading(f"open({str(mark)!r}, 'w')\n{ARGS}").request["microbatch"] == 2
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "TrainingArguments = 3\n",
        "TrainingArguments(" * 900,
        "TrainingArguments(\x00",
        "# TrainingArguments\nx: [\n",
    ],
)
def test_a_text_without_arguments_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        reading(text)


ORDER = {
    "late-recompute": (
        f"def main():\n    model = torch.compile(model)\n    model.gradient_checkpointing_enable()\n    {ARGS}",
        f"def main():\n    model.gradient_checkpointing_enable()\n    model = torch.compile(model)\n    {ARGS}",
    ),
    "optimizer-before-sharding": (
        f"def main():\n    step = torch.optim.AdamW(model.parameters())\n    fully_shard(model)\n    {ARGS}",
        f"def main():\n    fully_shard(model)\n    step = torch.optim.AdamW(model.parameters())\n    {ARGS}",
    ),
    "bits-as-keywords": (
        f"m = AutoModelForCausalLM.from_pretrained('a/b', load_in_8bit=True)\n{ARGS}",
        f"m = AutoModelForCausalLM.from_pretrained('a/b', quantization_config=BitsAndBytesConfig(load_in_8bit=True))\n{ARGS}",
    ),
    "blocks-said-twice": (f"c = OFTConfig(r=8, oft_block_size=32)\n{ARGS}", f"c = OFTConfig(oft_block_size=32)\n{ARGS}"),
}  # fmt: skip


def test_every_rule_has_a_case() -> None:
    assert set(ORDER) == {rule.id for rule in SCRIPTS}


@pytest.mark.parametrize("rule", ORDER)
def test_a_rule_finds_its_mistake_and_no_other(rule: str, tmp_path: Path) -> None:
    wrong, right = ORDER[rule]
    assert rule in {held.id for held, _ in checked(tmp_path, wrong).mistakes}
    assert rule not in {held.id for held, _ in checked(tmp_path, right).mistakes}


def test_other_functions_and_other_modules_are_no_order(tmp_path: Path) -> None:
    text = (
        "import re\nWORD = re.compile('a')\n\ndef made(model):\n    return "
        "torch.optim.AdamW(model.parameters())\n\ndef main():\n    fully_shard(model)\n    "
        f"re.compile('b')\n    model.gradient_checkpointing_enable()\n    {ARGS}"
    )
    found = {held.id: one for held, one in checked(tmp_path, text).mistakes}
    assert "optimizer-before-sharding" not in found
    assert "fully_shard" in found["late-recompute"].says
    assert "late-recompute" not in {
        held.id for held, _ in checked(tmp_path, text.replace("    fully_shard(model)\n", "")).mistakes
    }


def test_recompute_twice_stops(tmp_path: Path) -> None:
    own = "fsdp=True, fsdp_config={'activation_checkpointing': True}, bf16="
    assert not checked(tmp_path, ARGS.replace("bf16=", own)).stops
    assert checked(tmp_path, ARGS.replace("bf16=", f"gradient_checkpointing=True, {own}")).stops


def test_the_defaults_of_supervised_fine_tuning_are_its_own() -> None:
    found = reading(
        'args = SFTConfig("out", per_device_train_batch_size=2, packing=True, loss_type="nll", '
        'dataset_text_field="text")\n'
    )
    wanted = {"microbatch": 2, "recompute.mode": "full", "precision.compute": "bf16", "seq_len": 1024}
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert (found.unknown, found.unmodelled) == ((), ())
    assert reading('args = SFTConfig("out", max_length=4096, fp16=True)\n').request["seq_len"] == 4096
    own = reading('args = SFTConfig("out")\n')
    assert (own.request["loss"], own.unmodelled) == ("chunked", ())
    assert "script.loss_type" in dict(reading('args = SFTConfig("out", loss_type="dft")\n').unmodelled)


def test_a_job_with_a_second_model_is_told() -> None:
    found = reading('args = DPOConfig("out", per_device_train_batch_size=2)\n')
    assert (found.request["microbatch"], dict(found.unmodelled)["script.method"]) == (2, "DPO")


UNSLOTH = (
    "from unsloth import FastLanguageModel\nmodel, tokenizer = "
    "FastLanguageModel.from_pretrained('unsloth/Llama-3.2-1B', {load})\n{adapt}{made}"
)
ADAPTS = "model = FastLanguageModel.get_peft_model(model, {})\n"
TRAINS = (
    "args = SFTConfig(output_dir='o', max_seq_length=4096)\n",
    "SFTTrainer(model=model, max_seq_length=4096, args=TrainingArguments('o'))\n",
)


@pytest.mark.parametrize("made", TRAINS)
@pytest.mark.parametrize(
    ("load", "adapt", "said"),
    [
        ("max_seq_length=4096", "", {"quantization.weights": "nf4", "quantization.double_quant": True, "adapter.rank": 16, "offload.activations": True}),
        ("max_seq_length=4096, load_in_4bit=True", "r=8, target_modules=['q_proj']", {"adapter.rank": 8, "adapter.targets": ["q_proj"]}),
        ("max_seq_length=4096, load_in_8bit=True", "r=8", {"quantization.weights": "int8", "adapter.targets": ["all-linear"]}),
        ("max_seq_length=4096, load_in_4bit=False", "r=8", {"quantization.weights": None, "adapter.rank": 8}),
        ("max_seq_length=4096", "use_gradient_checkpointing=True", {"recompute.mode": "full", "offload.activations": None}),
    ],
)  # fmt: skip
def test_a_script_of_unsloth_says_what_it_loads_and_trains(
    load: str, adapt: str, said: dict[str, Any], made: str
) -> None:
    found = reading(UNSLOTH.format(load=load, adapt=ADAPTS.format(adapt), made=made))
    wanted = {
        "seq_len": 4096,
        "loss": "chunked",
        "recompute.mode": "full",
        "@model": "unsloth/Llama-3.2-1B",
        **said,
    }
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert (found.unknown, found.unmodelled) == ((), ())


def test_what_unsloth_does_that_is_not_in_the_text_is_not_guessed(tmp_path: Path) -> None:
    adapt = ADAPTS.format("r=8, modules_to_save=['norm']")
    assert "script.LoraConfig" in dict(
        reading(UNSLOTH.format(load="load_in_4bit=True", adapt=adapt, made=TRAINS[0])).unmodelled
    )
    assert "script.BitsAndBytesConfig" in dict(
        reading(UNSLOTH.format(load="load_in_4bit=flag", adapt="", made=TRAINS[0])).unmodelled
    )
    found = checked(
        tmp_path, UNSLOTH.format(load="load_in_4bit=True", adapt=ADAPTS.format(""), made=TRAINS[0])
    )
    assert "bits-as-keywords" not in {held.id for held, _ in found.mistakes}


def test_tables_that_unsloth_trains_whole_are_told_beside_the_sheet(tmp_path: Path) -> None:
    named = "r=8, target_modules=['q_proj', 'embed_tokens', 'lm_head']"
    adapt = ADAPTS.format(named)
    read = reading(UNSLOTH.format(load="load_in_4bit=True", adapt=adapt, made=TRAINS[0]))
    assert (read.request["adapter.targets"], read.unmodelled) == (["q_proj"], ())
    found = checked(tmp_path, UNSLOTH.format(load="load_in_4bit=True", adapt=adapt, made=TRAINS[0]))
    (whole,) = [one for one in found.moved if one.at == "script.whole_tables"]
    assert found.answer is not None
    table = found.answer.model.vocab * found.answer.model.hidden
    assert (whole.low_bytes, whole.high_bytes) == (4 * table, 2 * 18 * table)


@pytest.mark.parametrize(
    ("load", "share"),
    [
        ("fast_inference=True, gpu_memory_utilization=0.6", 0.6),
        ("fast_inference=True", 0.5),
        ("fast_inference=False", 0),
    ],
)
def test_a_server_beside_the_trainer_takes_its_share_of_the_card(
    load: str, share: float, tmp_path: Path
) -> None:
    adapt, made = ADAPTS.format("r=8"), TRAINS[0]
    found = checked(tmp_path, UNSLOTH.format(load=load, adapt=adapt, made=made))
    beside = sum(one.high_bytes for one in found.moved if one.at == "script.colocated")
    assert found.answer is not None
    assert found.answer.cluster is not None
    assert beside == int(share * found.answer.cluster.device.framework_high_bytes)


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ("use_vllm=True, vllm_mode='colocate', vllm_gpu_memory_utilization=0.7", 0.7),
        ("use_vllm=True", 0.3),
        ("use_vllm=True, vllm_mode='server'", None),
        ("use_vllm=False", None),
    ],
)
def test_a_server_in_the_process_of_trls_trainer(words: str, share: float | None) -> None:
    text = f"args = GRPOConfig(output_dir='o', {words})\nGRPOTrainer('Qwen/Qwen2.5-0.5B', args=args)\n"
    assert reading(text).values.get("script.colocated") == share


def test_a_whole_fine_tune_by_unsloth_quantizes_nothing() -> None:
    found = reading(
        UNSLOTH.format(load="full_finetuning=True, max_seq_length=4096", adapt="", made=TRAINS[0])
    ).request
    assert "quantization.weights" not in found
    assert (found["precision.parameters"], found.get("adapter.rank")) == ("bf16", None)


@pytest.mark.parametrize("bits", ["load_in_8bit=True", "load_in_4bit=True"])
@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ("", "full"),
        (", use_gradient_checkpointing=True", "full"),
        (", use_gradient_checkpointing=False", "none"),
    ],
)
def test_a_base_that_is_prepared_is_recomputed_and_wider(
    bits: str, more: str, mode: str, tmp_path: Path
) -> None:
    loads = (
        "model = AutoModelForCausalLM.from_pretrained('a/b', "
        f"quantization_config=BitsAndBytesConfig({bits}))\n"
    )
    rest = f"model = get_peft_model(model, LoraConfig(r=8))\n{ARGS}"
    text = f"{loads}model = prepare_model_for_kbit_training(model{more})\n{rest}"
    found = reading(text).request
    assert found.get("recompute.mode", found.get("?recompute.mode")) == mode
    assert (found["precision.parameters"], found["precision.compute"]) == ("fp32", "bf16")
    alone = text.replace("bf16=True, ", "")  # without autocast nobody accounts what passes along the layers
    assert "precision.compute" not in reading(alone).request
    moved = {one.at: one.high_bytes for one in checked(tmp_path, alone).moved}
    assert moved["script.prepared"] > 0
    assert "script.prepared" not in {one.at for one in checked(tmp_path, text).moved}
    assert reading(loads + rest).request.get("precision.parameters") is None


@pytest.mark.parametrize("recompute", ["full", "none"])
def test_what_a_prepared_base_may_add_is_of_one_layer_where_layers_run_again(recompute: str) -> None:
    sizes = {"@vocab": 32000, "@hidden": 4096, "@tokens": 8192, "@layers": 32, "recompute.mode": recompute}
    more = prepared_bytes({**sizes, "@layers": 33}) - prepared_bytes(sizes)
    assert more == 8192 * 4096 * (2 if recompute == "full" else 24)


@pytest.mark.parametrize(
    ("bits", "dtype"), [("load_in_4bit=True", "bf16"), ("load_in_8bit=True", "bf16"), ("", None)]
)
@pytest.mark.parametrize("trainer", ["SFTTrainer", "Trainer"])
def test_trl_trains_adapters_in_sixteen_bits_beside_a_quantized_base(
    trainer: str, bits: str, dtype: str | None
) -> None:
    loads = (
        f"m = AutoModelForCausalLM.from_pretrained('a/b', quantization_config=BitsAndBytesConfig({bits}))"
        if bits
        else ""
    )
    found = reading(
        f"{loads}\nc = LoraConfig(r=8, target_modules=['q_proj'])\n{ARGS}\n"
        f"t = {trainer}(model=m, args=a, peft_config=c)"
    )
    assert found.request.get("adapter.dtype") == (dtype if trainer == "SFTTrainer" else None)


PARSED = "p = ArgumentParser()\np.add_argument({flag}, type=int{more})\n{then}args = p.parse_args()\n"
BY_FLAG = 'a = TrainingArguments("out", per_device_train_batch_size=args.batch_size, bf16=True)\n'


@pytest.mark.parametrize(
    "flag", ["'--batch_size'", "'--batch-size'", "'-b', '--batch_size'", "'--size', dest='batch_size'"]
)
@pytest.mark.parametrize("given", [None, 7])
def test_a_flags_default_is_the_scripts_unless_a_command_gives_another(flag: str, given: int | None) -> None:
    text = PARSED.format(flag=flag, more=", default=4", then="") + BY_FLAG
    name = "--size" if "--size" in flag else "--batch-size" if "-size" in flag else "--batch_size"
    texts = {
        "train.py": text,
        **({"run.sh": f"torchrun --nproc_per_node=2 train.py {name} {given}\n"} if given else {}),
    }
    reads, left = recognise_files(texts, set(texts))
    assert not left
    assert reads["train.py"].request["microbatch"] == (given or 4)
    assert any("(line 2: the default of --" in line for line in reads["train.py"].assumed) == (given is None)


@pytest.mark.parametrize(
    ("more", "then"),
    [
        ("", ""), (", required=True", ""), (", default=usual", ""), (", default=4", "p.set_defaults(batch_size=2)\n"),
        (", default=4", "p.add_argument('--batch_size', default=2)\n"), (", default=4", "args.batch_size = 2\n"),
    ],
)  # fmt: skip
def test_a_default_that_is_not_sure_is_not_taken(more: str, then: str) -> None:
    found = reading(PARSED.format(flag="'--batch_size'", more=more, then=then) + BY_FLAG)
    assert found.values["per_device_train_batch_size"] == UNSET


def test_a_trainer_that_is_given_a_name_loads_it_whatever_is_loaded_behind() -> None:
    found = reading("""from trl import GRPOConfig, GRPOTrainer
name = "Qwen/Qwen3-1.7B"
trainer = GRPOTrainer(model=name, args=GRPOConfig(per_device_train_batch_size=1))
trainer.train()
name = "someone/trained"
tuned = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16")
""")
    assert (found.request["@model"], found.request["precision.parameters"]) == ("Qwen/Qwen3-1.7B", "fp32")


@pytest.mark.parametrize(("more", "length"), [("max_seq_length=1512, packing=True", 1512), ("max_seq_length=args.length", None), ("", 1024)])  # fmt: skip
def test_what_the_trainer_is_given_goes_before_its_configuration(more: str, length: int | None) -> None:
    text = f'args = SFTConfig("out", per_device_train_batch_size=2)\nSFTTrainer(model=model, args=args, {more})\n'  # fmt: skip
    assert reading(text).request.get("seq_len") == length


RELOADED = """from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B").to("cuda")
args = SFTConfig("out", per_device_train_batch_size=2)
trainer = SFTTrainer(model=model, args=args)
trainer.train()
model = AutoPeftModelForCausalLM.from_pretrained("out")
merged = model.merge_and_unload()
"""


def test_what_is_loaded_again_after_the_training_is_not_what_trains() -> None:
    assert reading(RELOADED).request["@model"] == "meta-llama/Llama-3.2-1B"


LISTS_LAYERS = '''
import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def find_all_linear_names(model, bits=16):
    """Names of linear layers."""
    cls = bnb.nn.Linear4bit if bits == 4 else torch.nn.Linear
    names = set()
    for name, module in model.named_modules():
        if isinstance(module, cls){more}:
            parts = name.split(".")
            names.add(parts[0] if len(parts) == 1 else parts[-1])
    if "lm_head" in names:
        names.remove("lm_head")
    print("adapters at", names)
    return list(names)


model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)
config = LoraConfig(r=8, target_modules=find_all_linear_names(model), task_type="CAUSAL_LM")
args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True)
Trainer(model=get_peft_model(model, config), args=args).train()
'''


def _with_listed_layers(tmp_path: Path, more: str) -> Checked:
    (tmp_path / "train.py").write_text(LISTS_LAYERS.replace("{more}", more))
    return memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB", seq_len=512)


def test_a_function_that_lists_linear_layers_is_the_word_for_all_of_them(tmp_path: Path) -> None:
    found = _with_listed_layers(tmp_path, "")
    assert found.answer is not None
    assert found.answer.plan.adapter is not None
    assert len(found.answer.plan.adapter.targets) == 7  # of a Llama's block
    assert "target_modules" not in str(found.doubt)


SKIPS = """
        if {test}(word in name for word in ["mm_projector", "vision_tower"]):
            continue"""


@pytest.mark.parametrize(("test", "open_"), [("any", False), ("not any", True), ("all", True)])
def test_towers_that_a_function_passes_over_leave_the_language_models_layers(
    test: str, open_: bool, tmp_path: Path
) -> None:
    text = LISTS_LAYERS.replace("{more}", "")
    loop = "for name, module in model.named_modules():"
    (tmp_path / "train.py").write_text(text.replace(loop, loop + SKIPS.replace("{test}", test)))
    found = memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB", seq_len=512)
    assert ("target_modules" in str(found.doubt)) is open_


@pytest.mark.parametrize(
    "more",
    [' and "q_proj" in name', ' and "vision_tower" in name', ' and not name.startswith("model.layers.0")'],
)
def test_a_function_that_asks_more_of_a_layer_leaves_them_open(tmp_path: Path, more: str) -> None:
    assert "target_modules" in str(_with_listed_layers(tmp_path, more).doubt)


PARSER = """
from trl import GRPOConfig, GRPOTrainer, TrlParser

kinds = ({kinds}GRPOConfig, ModelConfig)
parser = TrlParser({given})
args, model = parser.parse_args_and_config()
GRPOTrainer(model=model.model_name_or_path, args=args, reward_funcs=[score]).train()
"""


@pytest.mark.parametrize(("kinds", "given"), [("", "kinds"), ("ScriptArguments, ", "kinds, prog=name")])
def test_a_parser_may_be_given_its_classes_by_a_name(kinds: str, given: str) -> None:
    found = reading(PARSER.format(kinds=kinds, given=given))
    assert found.values["script.method"] == "GRPO"


@pytest.mark.parametrize(
    ("text", "trains"),
    [
        ("rows = load_dataset(name)\nrows.push_to_hub(name)\n", False), ("# moved elsewhere\n", False),
        ("loss(model(x)).backward()\n", True), ("MyTrainer(model).fit()\n", True), ("not Python (", True),
    ],
)  # fmt: skip
def test_a_script_in_which_nothing_trains_says_so(text: str, trains: bool) -> None:
    with pytest.raises(InputError) as told:
        reading(text)
    assert ("nothing trains in it by itself" not in str(told.value)) is trains
