"""Which model a training script loads, and what its dtype makes of everything that trains; each form of an
ordinary script comes to a sheet.
"""

from pathlib import Path
from typing import Any

import pytest

from bundled import written_names
from memsheet import check
from memsheet.budget import Result
from memsheet.catalog import model_names
from memsheet.exchange.file_releases import DTYPE_UNKNOWN, as_released, as_stored
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.file_format import FileReading
from memsheet.formulas.model_code.transformers.plan_problems import has_written_layers
from memsheet.guard import parse_json, parse_yaml
from memsheet.plan.workload import Training
from memsheet.questions.check import check_configuration_files
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
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
NAME = "meta-llama/Llama-3.2-1B"
HEAD = (
    "import torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments\n"
)
ARGS = 'args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)'
NAMED = {
    "a literal": f"def main():\n    model = AutoModelForCausalLM.from_pretrained('{NAME}'{{dtype}})\n    {ARGS}\n",
    "a helper": f"def load(name, width=None):\n    return AutoModelForCausalLM.from_pretrained(name{{dtype}})\nmodel = load('{NAME}')\n{ARGS}\n",
    "a helper's keyword": f"def load(name):\n    return AutoModelForCausalLM.from_pretrained(name{{dtype}})\ndef main(name='{NAME}'):\n    model = load(name=name)\nmain()\n{ARGS}\n",
    "a keyword": f"model = AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path='{NAME}'{{dtype}})\n{ARGS}\n",
    "a variable": f"def main():\n    name = '{NAME}'\n    model = AutoModelForCausalLM.from_pretrained(name{{dtype}})\n    {ARGS}\n",
    "a constant": f"MODEL = '{NAME}'\ndef main():\n    model = AutoModelForCausalLM.from_pretrained(MODEL{{dtype}})\n    {ARGS}\n",
    "an f-string": f"SIZE = 1\nOF = 'meta-llama'\nmodel = AutoModelForCausalLM.from_pretrained(f'{{{{OF}}}}/Llama-3.2-{{{{SIZE}}}}B'{{dtype}})\n{ARGS}\n",
    "a sum": f"OF = 'meta-llama/'\nmodel = AutoModelForCausalLM.from_pretrained(OF + 'Llama-3.2-1B'{{dtype}})\n{ARGS}\n",
    "a default": f"def main(name='{NAME}'):\n    model = AutoModelForCausalLM.from_pretrained(name{{dtype}})\n    {ARGS}\n",
    "started itself": f"if __name__ == '__main__':\n    name = '{NAME}'\n    model = AutoModelForCausalLM.from_pretrained(name{{dtype}})\n    {ARGS}\n",
    "inside a block": f"def main():\n    name = '{NAME}'\n    with torch.device('cpu'):\n        model = AutoModelForCausalLM.from_pretrained(name{{dtype}})\n    {ARGS}\n",
    "a method": f"class Job:\n    def run(self):\n        name = '{NAME}'\n        model = AutoModelForCausalLM.from_pretrained(name{{dtype}})\n        {ARGS}\n",
    "named again later": f"def main():\n    name = '{NAME}'\n    model = AutoModelForCausalLM.from_pretrained(name{{dtype}})\n    name = name.split('/')\n    {ARGS}\n",
    "a constant as a flag's default": f"from argparse import ArgumentParser\nBASE = '{NAME}'\np = ArgumentParser()\np.add_argument('--model', default=BASE)\na = p.parse_args()\nmodel = AutoModelForCausalLM.from_pretrained(a.model{{dtype}})\n{ARGS}\n",
    "after a tokenizer": f"tok = AutoTokenizer.from_pretrained('other/model')\nmodel = AutoModelForCausalLM.from_pretrained('{NAME}'{{dtype}})\n{ARGS}\n",
}  # fmt: skip
DTYPES = {
    "": "bf16",
    ", torch_dtype=torch.bfloat16": "bf16",
    ", dtype='float32'": "fp32",
    ", torch_dtype='auto'": "bf16",
    ", dtype=torch.float16": "fp16",
}
ALL = ("parameters", "gradients", "reduce", "moments")


def script(form: str, dtype: str = "") -> str:
    return HEAD + NAMED[form].format(dtype=dtype)


def reading(text: str) -> FileReading:
    return read_text("train.py", text, PARSERS)


def checked(folder: Path, text: str, **flags: Any) -> Checked:
    (folder / "train.py").write_text(text)
    return check_configuration_files(
        (str(folder / "train.py"),), None, dict(WHERE), {"seq_len": 512, **flags}
    )


@pytest.mark.parametrize("form", NAMED)
def test_the_model_is_named_by_the_script(form: str, tmp_path: Path) -> None:
    assert reading(script(form)).request["@model"] == NAME
    found = checked(tmp_path, script(form))
    assert found.answer is not None
    assert found.answer.model.name == "llama-3.2-1b"
    assert (found.doubt, found.why_not, found.no_model) == ("", (), "")


@pytest.mark.parametrize("form", ["a literal", "a variable"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_that_is_loaded_is_that_of_all_that_trains(form: str, dtype: str, tmp_path: Path) -> None:
    """Autocast casts products; weights in sixteen bits have gradients and moments of sixteen bits, and
    replicas reduce them so.
    """
    found = checked(tmp_path, script(form, dtype))
    assert (found.why_not, found.doubt) == ((), "")
    assert found.answer is not None
    own = found.answer.plan.precision
    assert {getattr(own, name).name for name in ALL} == {DTYPES[dtype]}
    assert own.compute.name == "bf16"


@pytest.mark.parametrize(
    ("release", "dtype"), [("4.57.1", "fp32"), ("5.0.0", "bf16"), ("5.23.0", "bf16"), (None, "bf16")]
)
def test_what_is_loaded_unasked_is_of_the_release(release: str | None, dtype: str, tmp_path: Path) -> None:
    found = checked(tmp_path, script("a literal"), engine_version=release)
    assert found.answer is not None
    assert found.answer.plan.precision.parameters.name == dtype
    assert any("default" in one and one.startswith("train.py: dtype") for one in found.assumed)
    said = checked(tmp_path, script("a literal", ", dtype=torch.bfloat16"), engine_version=release)
    assert said.answer is not None
    assert said.answer.plan.precision.parameters.name == "bf16"


@pytest.mark.parametrize("stored", ["float32", "float16", "torch.bfloat16", None])
def test_the_checkpoints_own_dtype_is_taken(stored: str | None) -> None:
    width = {"float32": "fp32", "float16": "fp16", "None": "fp32"}.get(str(stored), "bf16")
    for text in (script("a literal"), script("a literal", ", dtype='auto'")):
        assert as_stored(reading(text), stored).request["precision.parameters"] == width
    older = as_released(reading(script("a literal")), "4.40.0")
    assert as_stored(older, stored).request["precision.parameters"] == "fp32"


NAMELESS = [
    name
    for name in written_names()
    if (model := read_model(name, catalog=catalog_entry, names=model_names())).dtype is None
    and not model.quantization
    and has_written_layers(model)
]


def test_old_checkpoints_name_no_dtype() -> None:
    assert {"gpt2-xl", "t5-large", "bert-large", "gpt-j-6b"} <= set(NAMELESS)


@pytest.mark.parametrize("name", NAMELESS)
def test_weights_of_unknown_dtype_are_fp32_at_their_most(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script("a literal").replace(NAME, name))
    asked = {**WHERE, "gpus": None}
    found = check_configuration_files(
        (str(tmp_path / "train.py"),), name, asked, {"seq_len": 128, "microbatch": 1}
    )
    assert found.reads[next(iter(found.reads))].request["precision.parameters"] == "fp32"
    assert any(DTYPE_UNKNOWN in one for one in found.assumed)
    assert found.answer is None or found.answer.plan.precision.parameters.name == "fp32"


@pytest.mark.parametrize(
    ("gpus", "result"),
    [("1xT4", Result.UNCERTAIN), ("1xRTX-3060", Result.DOES_NOT_FIT), ("1xA100-40GB", Result.FITS)],
)
def test_what_fits_with_fp32_fits_and_what_does_not_in_sixteen_bits_does_not(
    gpus: str, result: Result, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        script("a literal").replace(NAME, "gpt2-xl").replace("bf16", "gradient_checkpointing=True, fp16")
    )
    lengths = {"seq_len": 1024, "microbatch": 1 if gpus != "1xRTX-3060" else 8}
    found = check_configuration_files(
        (str(tmp_path / "train.py"),), "gpt2-xl", {**WHERE, "gpus": gpus}, lengths
    )
    assert found.result is result
    assert found.answer is not None
    assert found.answer.verdict is not None
    assert (DTYPE_UNKNOWN in found.doubt) == (result is not Result.FITS)


def test_a_name_or_dtype_that_is_not_in_the_text_is_not_guessed(tmp_path: Path) -> None:
    text = script("a variable").replace(f"name = '{NAME}'", "name = sys.argv[1]")
    assert "@model" not in reading(text).request
    assert checked(tmp_path, text).no_model
    unsure = checked(tmp_path, script("a literal", ", torch_dtype=half if ok else None"))
    assert "script.dtype" in unsure.doubt


def test_adapters_have_a_base_of_the_dtype_that_is_loaded(tmp_path: Path) -> None:
    lora = "from peft import LoraConfig\npeft = LoraConfig(r=8, target_modules='all-linear')\n"
    for dtype, width in DTYPES.items():
        if width == "fp16":
            continue
        found = checked(tmp_path, lora + script("a literal", dtype))
        assert found.answer is not None, found.why_not
        assert (found.answer.plan.precision.parameters.name, found.answer.plan.precision.compute.name) == (
            width,
            "bf16",
        )
    whole = checked(tmp_path, lora + script("a literal", ", dtype='float32'").replace(", bf16=True", ""))
    assert whole.answer is not None, whole.why_not
    assert whole.answer.plan.precision.compute.name == "fp32"


def test_trl_is_given_a_name(tmp_path: Path) -> None:
    text = f"""
from trl import SFTConfig, SFTTrainer
args = SFTConfig("out", model_init_kwargs=dict(dtype="bfloat16", attn_implementation="flash_attention_2"), per_device_train_batch_size=1)
trainer = SFTTrainer(model="{NAME}", args=args)
"""
    found = checked(tmp_path, text, seq_len=1024)
    assert found.answer is not None
    assert (found.doubt, found.answer.plan.loss.value, found.answer.plan.attention.value) == (
        "",
        "chunked",
        "flash",
    )
    assert found.answer.plan.precision.parameters.name == "bf16"
    assert any("loss_type" in one.at for one in found.moved)
    plain = checked(tmp_path, text.replace('dtype="bfloat16", ', ""), seq_len=1024)
    assert plain.answer is not None
    assert plain.answer.plan.precision.parameters.name == "fp32"


@pytest.mark.parametrize("text", ["x = 'a' * 3\n", "s = 'ab'\n" + "s = s + s\n" * 60, "f = [" * 30 + "\n"])
def test_a_text_that_grows_is_not_followed(text: str) -> None:
    try:
        found = reading(f"{text}{ARGS}\nm = AutoModelForCausalLM.from_pretrained(s)\n")
    except ValueError:
        return
    assert "@model" not in found.request


HELPER = (
    f"{HEAD}def load(name):\n    return AutoModelForCausalLM.from_pretrained(name)\n"
    f"one = load('{NAME}')\ntwo = load('other/model')\n{ARGS}\n"
)
MUTUAL = (
    "def f(name):\n    g(name)\n    return AutoModelForCausalLM.from_pretrained(name)\n"
    "def g(name):\n    f(name)\n"
)
TOLD = [HELPER, f"{HEAD}{MUTUAL}f('{NAME}')\n{ARGS}\n"]


@pytest.mark.parametrize("text", TOLD, ids=["two models", "mutual"])
def test_what_calls_of_a_helper_do_not_agree_on_is_not_guessed(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    checked = check_configuration_files((str(tmp_path / "train.py"),), None, {**WHERE})
    assert checked.answer is None
    assert "no model is named" in checked.no_model


DRAWN = (
    f"{HEAD}B, T = 3, 640\n"
    f"model = AutoModelForCausalLM.from_pretrained('{NAME}', torch_dtype=torch.bfloat16).cuda()\n"
    "optimizer = torch.optim.AdamW(model.parameters())\nfor step in range(9):\n"
    "    ids = torch.randint(0, 1000, (B, T), device='cuda')\n"
    "    model(input_ids=ids, labels=ids).loss.backward()\n"
    "    optimizer.step()\n"
).replace("Trainer, TrainingArguments", "set_seed")


def test_rows_that_a_loop_draws_are_its_batch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DRAWN)
    checked = check_configuration_files((str(tmp_path / "train.py"),), None, {**WHERE})
    assert checked.answer is not None
    job = checked.answer.plan.workload
    assert isinstance(job, Training)
    assert (job.microbatch, job.seq_len) == (3, 640)


def test_rows_that_are_just_so_long_are_told_from_rows_that_may_be(tmp_path: Path) -> None:
    """Drawn by the script alone, filled up by the tokenizer, and not where data is read besides."""
    ids = "torch.randint(0, 1000, (B, T), device='cuda')"
    cut = "tokenizer(step, truncation=True, max_length=640{})"
    kinds = {
        DRAWN: "exact",
        DRAWN.replace(ids, cut.format(", padding='max_length'")): "exact",
        DRAWN.replace(ids, cut.format("")): "maximum",
        DRAWN.replace("B, T = 3, 640\n", "B, T = 3, 640\ndata = load_dataset('x')\n"): "maximum",
        DRAWN.replace("for step", "torch.randint(0, 9, (1, 64))\nfor step"): "maximum",
    }
    for text, kind in kinds.items():
        (tmp_path / "train.py").write_text(text)
        checked = check_configuration_files((str(tmp_path / "train.py"),), None, {**WHERE})
        assert checked.answer is not None
        job = checked.answer.plan.workload
        assert isinstance(job, Training)
        (read,) = checked.reads.values()
        assert (job.seq_len, read.request.get("?seq_len_kind", "exact")) == (640, kind), text


def test_a_decoder_that_tells_labels_apart_has_no_output_matrix(tmp_path: Path) -> None:
    """Its parameters are those of the causal model but the matrix, and no logits are at its peak."""
    recipe = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\nmax_length: 512\nper_device_train_batch_size: 1\n"
    )
    script = (
        "from transformers import AutoModelForSequenceClassification\n"
        "name = 'meta-llama/Meta-Llama-3-8B'\n"
        "model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=3)\n"
        "args = TrainingArguments('o', per_device_train_batch_size=1)\n"
        "Trainer(model=model, args=args).train()\n"
    )
    files = {"job.yaml": f"{recipe}center_rewards_coefficient: 0.01\n", "train.py": script}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        found = check_configuration_files(
            (str(tmp_path / name),), None, {**WHERE, "gpus": "8xH200"}, {"seq_len": 512}
        )
        assert found.answer is not None
        assert found.answer.parameters == 8_030_261_248 - 128_256 * 4_096
        assert ("labels" in found.doubt) is False
    (tmp_path / "job.yaml").write_text(f"{recipe}use_peft: false\n")
    plain = check_configuration_files((str(tmp_path / "job.yaml"),), None, {**WHERE, "gpus": "8xH200"})
    assert plain.answer is not None
    assert plain.answer.parameters == 8_030_261_248


TABLE = """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
MODELS = {{
    "small": {{"name": "meta-llama/Llama-3.2-1B", "batch": 3}},
    "large": {{"name": "meta-llama/Llama-3.1-8B", "batch": 1}},
}}
SIZES = [1024, 2048]
parser = argparse.ArgumentParser()
parser.add_argument("--size", default="small")
args = parser.parse_args()
{looks}
model = AutoModelForCausalLM.from_pretrained(held["name"], torch_dtype="bfloat16")
Trainer(model=model, args=TrainingArguments(output_dir="o", bf16=True, per_device_train_batch_size=held["batch"])).train()
"""


@pytest.mark.parametrize(
    ("looks", "command", "name", "batch"),
    [
        ("held = MODELS[args.size]", "", "llama-3.2-1b", 3),
        ("held = MODELS[args.size]", "python train.py --size large", "llama-3.1-8b", 1),
        ("held = MODELS.get(args.size)", "", "llama-3.2-1b", 3),
        ("held = MODELS.get(args.size, MODELS['large'])", "python train.py --size other", "llama-3.1-8b", 1),
        ("word = 'large'\nheld = MODELS[word]", "", "llama-3.1-8b", 1),
    ],
)
def test_a_table_is_asked_by_what_a_flag_is(
    tmp_path: Path, looks: str, command: str, name: str, batch: int
) -> None:
    (tmp_path / "train.py").write_text(TABLE.format(looks=looks))
    (tmp_path / "run.sh").write_text(command)
    file = tmp_path / ("run.sh" if command else "train.py")
    found = check(file, gpus="1xH200-141GB", seq_len=512)
    assert found.answer is not None, found.no_model
    assert found.answer.model.name == name
    assert found.answer.plan.training.microbatch == batch


def test_a_table_that_nobody_knows_where_it_is_asked_is_open(tmp_path: Path) -> None:
    looks = "import os\nheld = MODELS[os.environ['SIZE']]"
    (tmp_path / "train.py").write_text(TABLE.format(looks=looks))
    found = check(tmp_path / "train.py", gpus="1xH200-141GB", seq_len=512)
    assert found.result is None or found.result is Result.UNCERTAIN


PATHS = {
    "ROOT = Path(__file__).parent\nname = str(ROOT / 'models' / 'Llama-3.2-1B')": "./models/Llama-3.2-1B",
    "name = os.path.join(os.environ['ROOT'], 'models', 'Llama-3.2-1B')": "./models/Llama-3.2-1B",
    "name = Path('/data') / 'Llama-3.2-1B'": "/data/Llama-3.2-1B",
    "name = Path('/data/Llama-3.2-1B')": "/data/Llama-3.2-1B",
    "name = os.path.join('/data/', f\"Llama-3.2-{1}B\")": "/data/Llama-3.2-1B",
}


@pytest.mark.parametrize("lines", PATHS)
def test_a_path_is_known_as_far_as_its_end_is(lines: str, tmp_path: Path) -> None:
    head = f"import os\nfrom pathlib import Path\n{lines}\n"
    train = f"model = AutoModelForCausalLM.from_pretrained(name, dtype='bfloat16')\n{ARGS}\n"
    serve = "from vllm import LLM\nllm = LLM(model=str(name), max_model_len=512)\n"
    for text in (HEAD + head + train, head + serve):
        assert reading(text).request["@model"] == PATHS[lines]
    (tmp_path / "serve.py").write_text(head + serve)
    found = check(tmp_path / "serve.py", gpus="1xH100-80GB")
    assert found.result is Result.FITS
    assert any("Llama-3.2-1B" in one for one in found.assumed)


def test_a_path_of_which_the_end_is_open_is_open() -> None:
    text = "import os\nname = os.path.join('/data', os.environ['MODEL'])\n"
    train = f"model = AutoModelForCausalLM.from_pretrained(name, dtype='bfloat16')\n{ARGS}\n"
    assert "@model" not in reading(HEAD + text + train).request


CLASSES = {
    "from transformers import LlamaForCausalLM as Own": True,
    "from transformers.models.llama import LlamaForCausalLM as Own": True,
    "from unsloth import Own": True,
    "from llava.model import Own": False,
    "from .model import Own": False,
    "from llava.model import *": False,
    "class Own(transformers.LlamaForCausalLM):\n    pass": False,
}


@pytest.mark.parametrize("line", CLASSES)
@pytest.mark.parametrize("loops", [False, True])
def test_a_class_that_no_library_has_may_hold_more(line: str, loops: bool, tmp_path: Path) -> None:
    line = line.replace("Own", "OwnForCausalLM")
    sure = CLASSES[line.replace("OwnForCausalLM", "Own")]
    call = f"OwnForCausalLM.from_pretrained('{NAME}', torch_dtype='bfloat16')"
    load = f"import transformers\n{line}\nmodel = {call}\n"
    loop = (
        "import torch\noptimizer = torch.optim.AdamW(model.parameters())\n"
        "for batch in torch.utils.data.DataLoader(rows, batch_size=2):\n"
        "    model(**batch).loss.backward()\n    optimizer.step()\n"
    )
    (tmp_path / "train.py").write_text(load + loop if loops else HEAD + load + ARGS)
    found = check(tmp_path / "train.py", gpus="1xH200-141GB", seq_len=512)
    assert found.answer is not None, found.no_model
    assert ("may hold more" in str(found.doubt)) is not sure
    assert sure or found.result is Result.UNCERTAIN


COMMAND_BODY = """
    model = AutoModelForCausalLM.from_pretrained(base_model, torch_dtype=torch.bfloat16)
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=micro_batch, bf16=True)
    Trainer(model=model, args=args).train()
"""
COMMAND_HEAD = "import torch\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
PLAIN_COMMAND = f'def main(base_model: str = "Qwen/Qwen2.5-0.5B", micro_batch: int = 4):{COMMAND_BODY}'
COMMANDS = {
    "fire": f"import fire\n{PLAIN_COMMAND}\nfire.Fire(main)\n",
    "fire without a name": f"import fire\n{PLAIN_COMMAND}\nif __name__ == '__main__':\n    fire.Fire()\n",
    "jsonargparse": f"from jsonargparse import CLI\n{PLAIN_COMMAND}\nCLI(main)\n",
    "tyro": f"import tyro\n{PLAIN_COMMAND}\ntyro.cli(main)\n",
    "typer": (
        "import typer\napp = typer.Typer()\n@app.command()\n"
        'def main(base_model: str = typer.Option("Qwen/Qwen2.5-0.5B", "--model", "-m", help="which"), '
        f'micro_batch: int = typer.Option(default=4, help="rows")):{COMMAND_BODY}\napp()\n'
    ),
    "click": (
        'import click\n@click.command()\n@click.option("-m", "--base-model", default="Qwen/Qwen2.5-0.5B")\n'
        f'@click.option("--rows", "micro_batch", type=int, default=4)\ndef main(base_model, micro_batch):{COMMAND_BODY}\nmain()\n'
    ),
}  # fmt: skip
COMMAND_FLAGS = {"typer": ("--model", "--micro-batch"), "click": ("--base-model", "--rows")}
EIGHT = "8xH100-80GB"


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_functions_defaults_are_its_commands(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMMAND_HEAD + COMMANDS[kind])
    found = check(tmp_path / "train.py", gpus=EIGHT, seq_len=512)
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.workload.microbatch) == ("qwen2.5-0.5b", 4)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", COMMANDS)
def test_what_a_start_gives_a_command_stands_over_its_defaults(kind: str, tmp_path: Path) -> None:
    """The sheet was of the default, and could be sure of it."""
    model, rows = COMMAND_FLAGS.get(kind, ("--base_model", "--micro_batch"))
    (tmp_path / "train.py").write_text(COMMAND_HEAD + COMMANDS[kind])
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc-per-node 8 train.py {model} Qwen/Qwen2.5-7B {rows} 2\n"
    )
    found = check(tmp_path / "run.sh", gpus=EIGHT, seq_len=512)
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.workload.microbatch) == ("qwen2.5-7b", 2)  # type: ignore[union-attr]


@pytest.mark.parametrize("flag", ["--base_model Qwen/Qwen2.5-7B", "--micro_batch_size 8"])
def test_a_flag_of_size_that_a_text_has_no_use_for_leaves_a_verdict_open(flag: str, tmp_path: Path) -> None:
    """A parser that is not understood may read it."""
    text = PLAIN_COMMAND.replace("def main", "import ours\ngiven = ours.parse()\ndef main") + "\nmain()\n"
    (tmp_path / "train.py").write_text(COMMAND_HEAD + text)
    results = []
    for given in ("", flag):
        (tmp_path / "run.sh").write_text(f"torchrun --nproc-per-node 8 train.py {given}\n")
        results.append(check(tmp_path / "run.sh", gpus=EIGHT, seq_len=512).result)
    assert [one and one.value for one in results] == ["fits", "uncertain"]


READS_ENVIRONMENT = COMMAND_HEAD + (
    "import os\nbase_model = os.environ.get('WHICH_MODEL', 'Qwen/Qwen2.5-0.5B')\n"
    "micro_batch = int(os.getenv('ROWS', '4'))\n"
) + COMMAND_BODY.replace("\n    ", "\n")  # fmt: skip


@pytest.mark.parametrize(
    "start",
    [
        "export WHICH_MODEL=Qwen/Qwen2.5-7B ROWS=2\ntorchrun --nproc-per-node 8 train.py\n",
        "WHICH_MODEL=Qwen/Qwen2.5-7B ROWS=2 torchrun --nproc-per-node 8 train.py\n",
        "nohup env WHICH_MODEL=Qwen/Qwen2.5-7B ROWS=2 torchrun --nproc-per-node 8 train.py &\n",
        "M=Qwen/Qwen2.5-7B\nexport WHICH_MODEL=${OTHER:-$M} ROWS=2\ntorchrun --nproc-per-node 8 train.py\n",
    ],
)
def test_variables_of_the_environment_stand_over_a_scripts_defaults(start: str, tmp_path: Path) -> None:
    """The sheet was of the default, and sure of it."""
    (tmp_path / "train.py").write_text(READS_ENVIRONMENT)
    (tmp_path / "run.sh").write_text(start)
    for files in ((tmp_path / "run.sh",), (tmp_path / "run.sh", tmp_path / "train.py")):
        found = check(*files, gpus=EIGHT, seq_len=512)
        assert found.answer is not None, found.why_not
        assert (found.answer.model.name, found.answer.plan.workload.microbatch) == ("qwen2.5-7b", 2)  # type: ignore[union-attr]


@pytest.mark.parametrize("start", ["WHICH_MODEL=Qwen/Qwen2.5-7B\n", "export OTHER=Qwen/Qwen2.5-7B\n"])
def test_variables_that_a_start_does_not_hand_on_change_nothing(start: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READS_ENVIRONMENT)
    (tmp_path / "run.sh").write_text(f"{start}torchrun --nproc-per-node 8 train.py\n")
    found = check(tmp_path / "run.sh", gpus=EIGHT, seq_len=512)
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.workload.microbatch) == ("qwen2.5-0.5b", 4)  # type: ignore[union-attr]
