"""Engines that a Python script makes of values that stand elsewhere in it."""

from __future__ import annotations

import pytest

from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.file_format import MORE as FURTHER_WORDS
from memsheet.exchange.shared.file_format import UNSET, FileReading
from memsheet.guard import parse_json, parse_yaml
from memsheet.questions.named_models import unnamed_words

PARSERS = {"json": parse_json, "yaml": parse_yaml}
MODEL, LENGTH = "Qwen/Qwen3-8B", "serving.max_model_len"
FLAGS = """import argparse
from vllm import LLM
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen3-8B")
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--max-len", type=int{length})
{args} = parser.{parse}()
"""


def python(text: str) -> FileReading:
    return read_text("a.py", text, PARSERS)


def said(text: str) -> tuple[object, ...]:
    found = python(text)
    return tuple(found.request.get(key) for key in ("@model", "mesh.tp", LENGTH))


@pytest.mark.parametrize(
    "engine",
    [
        "ENGINE = dict(max_model_len=4096, tensor_parallel_size=2)",
        "ENGINE = {'max_model_len': 4096, 'tensor_parallel_size': 2}",
        "BASE = {'max_model_len': 4096}\nENGINE = {**BASE, 'tensor_parallel_size': 2}",
        "BASE = {'max_model_len': 4096}\nENGINE = dict(tensor_parallel_size=2, **BASE)",
    ],
)
def test_arguments_of_a_mapping_count(engine: str) -> None:
    text = f"from vllm import LLM\n{engine}\nllm = LLM(model={MODEL!r}, **ENGINE)\n"
    assert said(text) == (MODEL, 2, 4096)
    assert not python(text).unmodelled


@pytest.mark.parametrize(
    "engine",
    [
        "ENGINE = load()",
        "ENGINE = make(max_model_len=4096)",
        "ENGINE = Config(max_model_len=4096)",
        "ENGINE = {'max_model_len': 4096}\nENGINE['tensor_parallel_size'] = 2",
        "ENGINE = {'max_model_len': 4096}\nENGINE.update(read())",
        "ENGINE = {**read(), 'max_model_len': 4096}",
    ],
)
def test_arguments_that_nobody_can_tell_are_a_doubt(engine: str) -> None:
    found = python(f"from vllm import LLM\n{engine}\nllm = LLM(model={MODEL!r}, **ENGINE)\n")
    assert found.request["@model"] == MODEL
    assert any("$" in str(held) for _, held in found.unmodelled)


@pytest.mark.parametrize(("args", "parse"), [("opt", "parse_args"), ("opt, _", "parse_known_args")])
def test_flags_are_at_their_defaults_and_that_is_told(args: str, parse: str) -> None:
    text = FLAGS.format(args=args, parse=parse, length=", default=4096") + (
        "llm = LLM(model=opt.model, tensor_parallel_size=opt.tp, max_model_len=opt.max_len)\n"
    )
    assert said(text) == (MODEL, 2, 4096)
    told = " ".join(python(text).assumed)
    assert all(one in told for one in ("--model = Qwen/Qwen3-8B (line 4", "--tp = 2", "--max-len = 4096"))


def test_a_flag_without_a_default_is_a_doubt() -> None:
    text = FLAGS.format(args="args", parse="parse_args", length="") + (
        "llm = LLM(model=args.model, max_model_len=args.max_len)\n"
    )
    assert python(text).values["--max-model-len"] == UNSET


def test_the_argument_of_a_command_is_what_it_is_without_one() -> None:
    text = (
        "import sys\nfrom vllm import LLM\n"
        f"name = sys.argv[1] if len(sys.argv) > 1 else {MODEL!r}\nLLM(name)\n"
    )
    assert said(text)[0] == MODEL
    assert any("the command gives no argument" in one for one in python(text).assumed)


BUILD = """from vllm import LLM
def build(model, tp: int = 1, *, length=4096):
    return LLM(model=model, tensor_parallel_size=tp, max_model_len=length)
"""


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (f"build({MODEL!r})", (MODEL, 1, 4096)),
        (f"build({MODEL!r}, 2)", (MODEL, 2, 4096)),
        (f"build(model={MODEL!r}, length=8192)", (MODEL, 1, 8192)),
    ],
)
def test_parameters_are_what_the_files_own_call_gives_them(call: str, wanted: tuple[object, ...]) -> None:
    assert said(f"{BUILD}{call}\n") == wanted


def test_a_parameters_default_is_told_and_two_calls_are_a_doubt() -> None:
    assert any("tp = 1 (line 2" in one for one in python(f"{BUILD}build({MODEL!r})\n").assumed)
    twice = python(f"{BUILD}build({MODEL!r}, 1)\nbuild({MODEL!r}, 4)\n")
    assert twice.values["--tensor-parallel-size"] == UNSET


def test_an_engine_of_sglang_is_its_server() -> None:
    found = python(
        f"import sglang as sgl\nllm = sgl.Engine(model_path={MODEL!r}, tp_size=2, context_length=8192,"
        " mem_fraction_static=0.7, disable_cuda_graph=False)\n"
    )
    assert found.form.name == "sglang"
    assert not found.unknown
    wanted = {"@model": MODEL, "mesh.tp": 2, LENGTH: 8192, "serving.memory_fraction": 0.7}
    assert {key: found.request.get(key) for key in wanted} == wanted


def test_a_configuration_of_ray_with_further_arguments_is_a_doubt() -> None:
    found = python(
        "from ray.serve.llm import LLMConfig\nLLMConfig(model_loading_config=dict(model_id='a', "
        f"model_source={MODEL!r}), engine_kwargs=dict(max_model_len=4096, **more()))\n"
    )
    assert found.request[LENGTH] == 4096
    assert found.unmodelled


DATACLASS = """from dataclasses import dataclass, field
from vllm import LLM
@dataclass
class Settings:
    model: str = "Qwen/Qwen3-8B"
    tp: int = field(default=2)
    length: int = 4096
"""


@pytest.mark.parametrize(
    "made",
    [
        "s = Settings()",
        "s = Settings('Qwen/Qwen3-8B', length=4096)",
        "s = HfArgumentParser(Settings).parse_args_into_dataclasses()[0]",
        "parser = HfArgumentParser((Settings,))\n(s,) = parser.parse_args_into_dataclasses()",
        (
            "ALL = {'small': Settings(), 'big': Settings(tp=8)}\n"
            "name = sys.argv[1] if sys.argv[1:] else 'small'\ns = ALL[name]"
        ),
    ],
)
def test_fields_of_a_dataclass_are_what_its_object_holds(made: str) -> None:
    line = "LLM(model=s.model, tensor_parallel_size=s.tp, max_model_len=s.length)"
    text = f"{DATACLASS}{made}\n{line}\n"
    assert said(text) == (MODEL, 2, 4096)
    inside = (
        f"{DATACLASS}{made}\ndef build(c):\n"
        "    return LLM(c.model, tensor_parallel_size=c.tp, max_model_len=c.length)\nbuild(s)\n"
    )
    assert said(inside) == (MODEL, 2, 4096)
    assert said(f"{DATACLASS}{made}\ns.tp = pick()\n{line}\n") == (MODEL, None, 4096)
    if "sys.argv" in made or "parse_args" in made:
        assert any("the command gives no" in one for one in python(text).assumed)


def test_a_command_of_words_has_what_a_mapping_holds() -> None:
    text = """import subprocess, sys
MODELS = {"small": ("Qwen/Qwen3-8B", 2, 4096), "big": ("a/b", 8, 1)}
model, tp, length = MODELS[sys.argv[1] if len(sys.argv) > 1 else "small"]
subprocess.run(["vllm", "serve", model, "-tp", str(tp), "--max-model-len", str(length)])
"""
    assert said(text) == (MODEL, 2, 4096)
    assert said(text.replace('"big"', '"big"').replace("import", "MODELS = load()\nimport", 1)) != (
        MODEL,
        2,
        4096,
    )


@pytest.mark.parametrize(
    ("around", "sequences"),
    [
        ("", 128),
        ("# vllm==0.7.3\n", None),
        ("from vllm.usage.usage_lib import UsageContext\nuse = UsageContext.OPENAI_API_SERVER\n", None),
    ],
)
def test_an_engine_of_arguments_has_the_schedulers_own_defaults(around: str, sequences: int | None) -> None:
    text = f"{around}from vllm import AsyncEngineArgs\nargs = AsyncEngineArgs(model={MODEL!r})\n"
    assert python(text).request.get("?serving.max_sequences") == sequences


def test_a_value_that_the_text_does_not_tell_has_the_name_that_holds_it() -> None:
    text = "import subprocess\nsubprocess.run(['vllm', 'serve', pick(), '-tp', str(cards.count)])\n"
    assert python(text).request["@model"] == "${open}"
    assert unnamed_words({"a.py": python(text)}).startswith(
        "the model is named by what the text does not tell:"
    )
    assert unnamed_words({"a.py": python(text.replace("pick()", "cfg.model"))}).startswith(
        "the model is named by $cfg_model"
    )


ASKS = """from argparse import ArgumentParser
from vllm import LLM
DEFAULT = "Qwen/Qwen3-8B"
parser = ArgumentParser()
parser.add_argument("--base-model", default={default})
class Job:
    def __init__(self, args):
        self.args = args
    def run(self):
        return LLM(model=self.args.base_model, max_model_len=4096)
args = parser.parse_args()
Job(args).run()
"""


def test_a_constant_is_a_flags_default_and_an_object_has_the_flags() -> None:
    assert said(ASKS.format(default="DEFAULT"))[0] == MODEL


def test_a_model_that_a_script_asks_for_is_asked_for_by_name() -> None:
    found = python(ASKS.format(default="None"))
    assert "base_model" in unnamed_words({"a.py": found})


@pytest.mark.parametrize("program", ["'python'", "'python3'", "'/usr/bin/python3.11'", "sys.executable"])
@pytest.mark.parametrize("module", ["vllm.entrypoints.openai.api_server", "sglang.launch_server"])
def test_a_list_of_words_starts_a_server_by_its_module(program: str, module: str) -> None:
    flag, length = (
        ("--model", "--max-model-len") if "vllm" in module else ("--model-path", "--context-length")
    )
    words = f"[{program}, '-m', '{module}', '{flag}', MODEL, '{length}', '4096']"
    text = f"import subprocess, sys\nMODEL = '{MODEL}'\ndef serve():\n    subprocess.Popen({words})\n"
    found = python(text)
    assert (found.request["@model"], found.request[LENGTH]) == (MODEL, 4096)


SERVICE = """import bentoml, pydantic
class Args(pydantic.BaseModel):
    model_id: str = "Qwen/Qwen3-8B"
    tp: int = pydantic.Field(2, description="cards")
    length: int = pydantic.Field(default=4096)
args = bentoml.use_arguments(Args)
@bentoml.service
class Server:
    model = bentoml.models.HuggingFaceModel(args.model_id.lower(), exclude=["*.pth"])
    def __command__(self):
        return ["vllm", "serve", self.model, "-tp", str(args.tp), "--max-model-len", str(args.length){more}]
{last}"""


def test_a_service_of_a_class_serves_what_the_class_holds() -> None:
    model, *sizes = said(SERVICE.format(more="", last=""))
    assert (str(model).lower(), *sizes) == (MODEL.lower(), 2, 4096)


def test_further_words_of_a_service_are_a_doubt() -> None:
    assert FURTHER_WORDS in dict(python(SERVICE.format(more=", *args.more", last="")).unmodelled)


@pytest.mark.parametrize(
    "last",
    [
        "    def __init__(self, model):\n        self.model = model\n",
        'class Other:\n    model = "meta-llama/Llama-3.1-8B"\n',
    ],
)
def test_an_attribute_that_is_given_twice_is_nobodys(last: str) -> None:
    assert said(SERVICE.format(more="", last=last))[0] != MODEL.lower()


def test_a_parameter_of_a_class_is_its_default() -> None:
    text = (
        "import modal, subprocess\nclass Server:\n"
        '    model: str = modal.parameter(default="Qwen/Qwen3-8B")\n    def serve(self):\n'
        '        subprocess.Popen(["vllm", "serve", self.model, "--max-model-len", "4096"])\n'
    )
    assert said(text) == (MODEL, 1, 4096)
