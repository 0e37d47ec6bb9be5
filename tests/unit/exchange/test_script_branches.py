"""What a script makes under a condition: adapters, fewer bits, layers that are computed again."""

from pathlib import Path

import pytest

from memsheet import check
from memsheet.budget import Result
from memsheet.report.shared.checked import Checked

TRAINER = """
import os
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
{before}
def load():
    bits = None
    {bits}
    return AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", quantization_config=bits, torch_dtype="bfloat16")

model = load()
{adapter}
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True, gradient_checkpointing=True)
Trainer(model=model, args=args, train_dataset=data).train()
"""
LORA = "model = get_peft_model(model, LoraConfig(r=16, target_modules=['q_proj', 'v_proj']))"
FOUR = "bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')"
FLAGS = "from argparse import ArgumentParser\np = ArgumentParser()\n{}\nargs = p.parse_args()"
SWITCH = FLAGS.format("p.add_argument('--lora', action='store_true')")
METHOD = FLAGS.format("p.add_argument('--method', default='{}')")
SMALL, LARGE = "1xRTX4090", "1xH200"


def checked(folder: Path, gpus: str, before: str = "", bits: str = "", adapter: str = "") -> Checked:
    script = folder / "train.py"
    script.write_text(TRAINER.format(before=before, bits=bits, adapter=adapter))
    return check(script, gpus=gpus, seq_len=1024)


def is_adapted(found: Checked) -> bool:
    assert found.answer is not None
    return found.answer.plan.adapter is not None


@pytest.mark.parametrize(
    ("before", "test", "made"),
    [
        ("", "True", True), ("LORA = True", "LORA", True), ("LORA = False", "LORA", False), ("MODE = 'lora'", "MODE == 'lora'", True),
        ("MODE = 'full'", "MODE in ('lora', 'qlora')", False), ("MODE = 'qlora'", "MODE in ('lora', 'qlora')", True),
        ("LORA, SMALL = True, False", "LORA and not SMALL", True), (METHOD.format("lora"), "args.method == 'lora'", True),
    ],
)  # fmt: skip
def test_adapters_are_made_where_the_text_decides_it(
    before: str, test: str, made: bool, tmp_path: Path
) -> None:
    found = checked(tmp_path, SMALL, before, adapter=f"if {test}:\n    {LORA}")
    assert is_adapted(found) is made
    assert found.result is (Result.FITS if made else Result.DOES_NOT_FIT)


@pytest.mark.parametrize(
    ("before", "adapter"),
    [
        (SWITCH, f"if args.lora:\n    {LORA}"), (METHOD.format("full"), f"if args.method == 'lora':\n    {LORA}"),
        (SWITCH, f"def adapt(model):\n    if not args.lora:\n        return model\n    {LORA}\n    return model\nmodel = adapt(model)"),
        (SWITCH, f"def adapt(model):\n    {LORA}\n    return model\nif args.lora:\n    model = adapt(model)"),
    ],
)  # fmt: skip
def test_a_flag_that_nobody_gives_makes_none(before: str, adapter: str, tmp_path: Path) -> None:
    """By its default the whole model trains, and whoever gives the flag needs less."""
    assert not is_adapted(checked(tmp_path, LARGE, before, adapter=adapter))
    assert checked(tmp_path, LARGE, before, adapter=adapter).result is Result.FITS
    denied = checked(tmp_path, SMALL, before, adapter=adapter)
    assert denied.result is Result.UNCERTAIN
    assert "LoraConfig of --" in denied.doubt


def test_a_flag_that_a_command_gives_makes_them(tmp_path: Path) -> None:
    checked(tmp_path, SMALL, SWITCH, adapter=f"if args.lora:\n    {LORA}")
    launch = tmp_path / "run.sh"
    for flag, made in (("--lora", True), ("", False)):
        launch.write_text(f"python train.py {flag}\n")
        found = check(launch, gpus=SMALL, seq_len=1024)
        assert is_adapted(found) is made
        assert (found.result is Result.FITS) is made


@pytest.mark.parametrize("test", ["os.environ['LORA']", "settings.lora", "has_peft()"])
def test_what_the_text_does_not_decide_is_open(test: str, tmp_path: Path) -> None:
    found = checked(tmp_path, SMALL, adapter=f"if {test}:\n    {LORA}")
    assert is_adapted(found)
    assert found.result is Result.UNCERTAIN
    assert "LoraConfig made under a condition" in found.doubt


def test_fewer_bits_are_made_alike(tmp_path: Path) -> None:
    def quantized(before: str, test: str) -> Checked:
        return checked(tmp_path, SMALL, before, f"if {test}:\n        {FOUR}", LORA)

    for before, test, bits in (("FOUR = True", "FOUR", True), ("FOUR = False", "FOUR", False)):
        found = quantized(before, test)
        assert found.result is Result.FITS
        assert found.answer is not None
        assert (found.answer.plan.quantization is not None) is bits
    assert quantized("", "settings.bits == 4").result is Result.UNCERTAIN
    at_flag = quantized(FLAGS.format("p.add_argument('--four', action='store_true')"), "args.four")
    assert at_flag.result is Result.FITS
    assert at_flag.answer is not None
    assert at_flag.answer.plan.quantization is None


CONFIGURED = "cfg = LoraConfig(r=16, target_modules=['q_proj', 'v_proj'])\n"


@pytest.mark.parametrize(
    "adapter",
    [
        CONFIGURED, "LoraConfig(r=16)", f"{CONFIGURED}# model = get_peft_model(model, cfg)", f"{CONFIGURED}print(cfg)\ncfg.r = 32",
        f"{CONFIGURED}peft_config = cfg", f"def adapt(model):\n    {CONFIGURED}    return model\nmodel = adapt(model)",
        f"{CONFIGURED}if False:\n    model = get_peft_model(model, cfg)", f"{CONFIGURED}cfg = None",
    ],
)  # fmt: skip
def test_a_configuration_that_nothing_takes_makes_no_adapters(adapter: str, tmp_path: Path) -> None:
    """The whole model trains; whoever hands it over after all needs less."""
    assert not is_adapted(checked(tmp_path, LARGE, adapter=adapter))
    assert checked(tmp_path, LARGE, adapter=adapter).result is Result.FITS
    denied = checked(tmp_path, SMALL, adapter=adapter)
    assert denied.result is not Result.FITS
    if "if False" not in adapter:
        assert "LoraConfig of line" in denied.doubt


@pytest.mark.parametrize(
    "taken",
    [
        f"{CONFIGURED}model = get_peft_model(model, cfg)", f"{CONFIGURED}peft_config = cfg\nmodel.add_adapter(peft_config)",
        f"{CONFIGURED}model = get_peft_model(model, globals()['cfg'])", f"class Own:\n    {CONFIGURED}model = adapted(model, Own)",
        f"def adapt(model):\n    {CONFIGURED}    return get_peft_model(model, cfg)\nmodel = adapt(model)",
        "cfg = LoraConfig(r=16) if True else None\nmodel = get_peft_model(model, cfg)",
        f"{CONFIGURED}more = {{'peft_config': cfg}}\nmodel = adapted(model, **more)",
    ],
)  # fmt: skip
def test_a_configuration_that_anything_takes_makes_adapters(taken: str, tmp_path: Path) -> None:
    found = checked(tmp_path, SMALL, adapter=taken)
    assert is_adapted(found)
    assert found.result is Result.FITS


@pytest.mark.parametrize(("test", "result"), [("args.lora", False), ("settings.adapts", True)])
def test_a_configuration_is_as_sure_as_what_takes_it(test: str, result: bool, tmp_path: Path) -> None:
    taken = f"{CONFIGURED}if {test}:\n    model = get_peft_model(model, cfg)"
    found = checked(tmp_path, SMALL, SWITCH, adapter=taken)
    assert is_adapted(found) is result
    assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize(("given", "bits"), [(", quantization_config=four", True), ("", False)])
def test_fewer_bits_that_no_call_takes_are_none(given: str, bits: bool, tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    script.write_text(
        "import torch\nfrom transformers import AutoModelForCausalLM, BitsAndBytesConfig\n"
        f"{FOUR.replace('bits', 'four')}\n"
        f"model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B', torch_dtype=torch.bfloat16{given})\n"
        "model.generate(torch.ones(1, 4096, dtype=torch.long), max_new_tokens=256)\n"
    )
    found = check(script, gpus="1xRTX4070", prompt_tokens=4096)
    assert found.answer is not None
    assert (found.answer.plan.quantization is not None) is bits
    assert (found.result is Result.FITS) is bits
    trains = checked(tmp_path, SMALL, FOUR.replace("bits", "four"), "bits = four" if bits else "", LORA)
    assert trains.answer is not None
    assert (trains.answer.plan.quantization is not None) is bits


def test_layers_that_may_be_computed_again_leave_a_verdict_open(tmp_path: Path) -> None:
    text = TRAINER.format(before="", bits="", adapter=LORA).replace(", gradient_checkpointing=True", "")
    script = tmp_path / "train.py"
    for test, result in (("True", Result.FITS), ("settings.again", Result.UNCERTAIN)):
        script.write_text(
            text.replace("args =", f"if {test}:\n    model.gradient_checkpointing_enable()\nargs =")
        )
        assert check(script, gpus=SMALL, seq_len=1024).result is result


def test_experts_may_be_linear_layers_that_bits_are_of(tmp_path: Path) -> None:
    """In transformers before 5 they are, and after it a stacked parameter, which stays whole."""
    script = tmp_path / "train.py"
    text = TRAINER.format(before="", bits=FOUR, adapter=LORA).replace("Llama-3.1-8B", "Mixtral-8x7B-v0.1")
    script.write_text(text)
    found = check(script, gpus="1xA100-80GB", seq_len=512)
    assert found.result is Result.UNCERTAIN
    assert "before 5" in found.doubt
    newer = check(script, gpus="1xA100-80GB", seq_len=512, engine_version="5.1")
    assert newer.result is Result.DOES_NOT_FIT
    assert check(script, gpus="1xRTX3060-12GB", seq_len=512).result is Result.DOES_NOT_FIT, "nor in few bits"
    script.write_text(text.replace("Mixtral-8x7B-v0.1", "Llama-3.1-70B"))
    assert check(script, gpus="1xRTX4090", seq_len=512).result is Result.DOES_NOT_FIT


@pytest.mark.parametrize("command", ["settings.command == 'train'", "args.command == 'train'"])
def test_what_a_training_stands_under_says_nothing_of_it(command: str, tmp_path: Path) -> None:
    """Whoever asks for something else has no training, and what is made for that is none of its."""
    text = TRAINER.format(before="", bits=FOUR, adapter=LORA)
    head, _, body = text.partition("\ndef load")
    inner = "\n    ".join(f"def load{body}".splitlines())
    other = "def try_it():\n    return AutoModelForCausalLM.from_pretrained('x', quantization_config=BitsAndBytesConfig(load_in_8bit=True))"  # fmt: skip
    script = tmp_path / "train.py"
    script.write_text(
        f"{head}\ndef train():\n    {inner}\n{other}\n"
        f"if {command}:\n    train()\nelif settings.other:\n    try_it()\n"
    )
    found = check(script, gpus=SMALL, seq_len=1024)
    assert is_adapted(found)
    assert found.result is Result.FITS
    assert found.answer is not None
    assert found.answer.plan.quantization is not None
    assert found.answer.plan.quantization.weights is not None
    assert found.answer.plan.quantization.weights.name.startswith("nf4")


def test_of_two_trainings_the_one_that_runs_is_read(tmp_path: Path) -> None:
    train = "    args = TrainingArguments(output_dir='o', bf16=True, gradient_checkpointing=True, per_device_train_batch_size=1)\n    Trainer(model=model, args=args).train()"  # fmt: skip
    head = TRAINER.format(before=SWITCH, bits="", adapter="").partition("args = Training")[0]
    script = tmp_path / "train.py"
    script.write_text(
        f"{head}\ndef train_lora(model):\n    {LORA}\n{train}\ndef train_all(model):\n{train}\n"
        "if args.lora:\n    train_lora(model)\nelse:\n    train_all(model)\n"
    )
    found = check(script, gpus=SMALL, seq_len=1024)
    assert not is_adapted(found)
    assert found.result is Result.UNCERTAIN


NAMED = """
name = "/models/ours"
if not os.path.exists(name):
    name = "meta-llama/Llama-3.1-8B"
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="bfloat16")
"""


def test_a_model_that_is_named_under_a_condition_is_the_likely_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    head, _, rest = TRAINER.format(before="", bits="", adapter=LORA).partition("def load")
    script.write_text(f"{head}{NAMED}{rest.partition('model = load()')[2]}")
    found = check(script, gpus=LARGE, seq_len=1024)
    assert found.answer is not None, found.no_model
    assert found.answer.model.name == "llama-3.1-8b"
    assert found.result is Result.UNCERTAIN
    assert "may be is open" in found.doubt


@pytest.mark.parametrize("targets", ["['q_proj', 'v_proj']", "settings.modules"])
def test_a_rank_that_the_text_does_not_tell_is_the_usual_one(targets: str, tmp_path: Path) -> None:
    open_rank = f"model = get_peft_model(model, LoraConfig(r=settings.rank, target_modules={targets}))"
    found = checked(tmp_path, LARGE, adapter=open_rank)
    assert found.answer is not None, found.why_not
    assert found.answer.plan.adapter is not None
    assert found.answer.plan.adapter.rank == 8
    assert found.result is Result.UNCERTAIN
    assert "lora_rank" in found.doubt


@pytest.mark.parametrize(
    ("dtype", "result"), [(", torch_dtype='bfloat16'", Result.FITS), ("", Result.UNCERTAIN)]
)
def test_weights_were_loaded_in_fp32_before(dtype: str, result: Result, tmp_path: Path) -> None:
    """In transformers before 5, which nobody says that it does not run."""
    script = tmp_path / "train.py"
    script.write_text(
        TRAINER.format(before="", bits="", adapter=LORA).replace(', torch_dtype="bfloat16"', dtype)
    )
    assert check(script, gpus=SMALL, seq_len=1024).result is result
    for version, told in (("5.1", Result.FITS), ("4.51", Result.FITS if dtype else Result.DOES_NOT_FIT)):
        assert check(script, gpus=SMALL, seq_len=1024, engine_version=version).result is told
    assert check(script, gpus=LARGE, seq_len=1024).result is Result.FITS


@pytest.mark.parametrize(("targets", "result"), [("['q_proj', 'v_proj']", Result.FITS), ("'all-linear'", Result.UNCERTAIN)])  # fmt: skip
def test_experts_may_be_linear_layers_that_adapters_are_of(
    targets: str, result: Result, tmp_path: Path
) -> None:
    lora = LORA.replace("r=16", "r=256").replace("['q_proj', 'v_proj']", targets)
    text = TRAINER.format(before="", bits="", adapter=lora).replace(
        "meta-llama/Llama-3.1-8B", "Qwen/Qwen1.5-MoE-A2.7B"
    )
    script = tmp_path / "train.py"
    script.write_text(text)
    assert check(script, gpus="1xH100-80GB", seq_len=512).result is result
    assert check(script, gpus="1xH100-80GB", seq_len=512, engine_version="5.1").result is Result.FITS


TWO_LOADS = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
name = "Qwen/Qwen2.5-7B"
if {test}:
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="bfloat16", device_map="auto")
else:
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="float32")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True, gradient_checkpointing=True)
Trainer(model=model, args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("test", "spread"),
    [("'72B' in name", False), ("'7B' in name", True), ("'7B' not in name", False), ("name == 'a'", False)],
)
def test_of_two_loads_the_one_that_runs_is_read(test: str, spread: bool, tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text(TWO_LOADS.format(test=test))
    found = check(script, gpus="4xH100-80GB", seq_len=512)
    assert found.answer is not None, found.why_not
    assert (found.answer.plan.mesh.pp > 1) is spread
    assert "several_loads" not in found.doubt


def test_of_two_loads_that_nobody_decides_the_verdict_is_open(tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text(TWO_LOADS.format(test="settings.large"))
    found = check(script, gpus="4xH100-80GB", seq_len=512)
    assert "several_loads of lines 5, 7" in found.doubt
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert found.answer.verdict.result is Result.UNCERTAIN
