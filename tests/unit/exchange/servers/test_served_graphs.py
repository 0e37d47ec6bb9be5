"""Servers of Ray Serve, Dynamo's graphs, recipes and Python scripts, each by the engine's command."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER

from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.servers import servers_in_text
from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.serve_command import WORKER_FLAGS, hub_name
from memsheet.guard import parse_yaml
from memsheet.questions.launches import is_candidate
from memsheet.questions.recognised_files import PARSERS, recognise_files

LENGTH, SEQUENCES, SHARE, EAGER = (
    "serving.max_model_len",
    "serving.max_sequences",
    "serving.memory_fraction",
    "serving.cuda_graphs",
)
SAID: dict[str, dict[str, dict[str, Any]]] = {
    "ry-phi-tiny-moe-dp4.yaml": {"microsoft/Phi-tiny-MoE-instruct": {"mesh.dp_replicate": 4, LENGTH: 1024, SEQUENCES: 32, EAGER: False}},
    "ry-llama-3.1-8b-tp2.yaml": {"meta-llama/Llama-3.1-8B-Instruct": {"@model": "meta-llama/Llama-3.1-8B-Instruct", "mesh.tp": 2, LENGTH: 8192}},
    "ry-kuberay-llm-serve.yaml": {"qwen2.5-7b-instruct": {"@model": "Qwen/Qwen2.5-7B-Instruct", LENGTH: 1024, SHARE: 0.75}},
    "ry-kuberay-deepseek.yaml": {"deepseek": {"@model": "deepseek-ai/DeepSeek-R1", "mesh.tp": 8, "mesh.pp": 2, SHARE: 0.92}},
    "dy-trtllm-agg-with-config.yaml": {"TRTLLMWorker": {"@model": "Qwen/Qwen3-0.6B", SEQUENCES: 16, SHARE: 0.95, "serving.max_batched_tokens": 8192}},
    "dy-sglang-disagg-v1beta1.yaml": {n: {"@model": "Qwen/Qwen3-0.6B", "serving.page_tokens": 16, "engine": "sglang"} for n in ("decode", "prefill")},
    "dy-llama-3-70b-disagg.yaml": {
        "VllmPrefillWorker": {"@model": "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "mesh.tp": 2, SHARE: 0.95, "serving.page_tokens": 128},
        "VllmDecodeWorker": {"mesh.tp": 4, SHARE: 0.9},
    },
    "vr-gpt-oss-120b.yaml": {"default": {"@model": "openai/gpt-oss-120b"}, "amd_fp8": {"@model": "amd/gpt-oss-120b-w-mxfp4-a-fp8"}},
    "vr-qwen3-8b.yaml": {"default": {"@model": "Qwen/Qwen3-8B"}},
    "mo-vllm-inference.py": {
        "command": {"@model": "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "mesh.tp": 1, EAGER: False, "engine_version": "0.9.1"}
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_read_out_of_real_files(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert is_candidate("." + name.rpartition(".")[2], text)
    assert [one.name for one in servers_in_text(name, text, parse_yaml)] == list(SAID[name])
    for server, wanted in SAID[name].items():
        (read,) = recognise_files({name: text}, (), server)[0].values()
        assert {key: read.request.get(key) for key in wanted} == wanted
        assert not read.unknown


def test_all_cards_of_a_node_are_no_number_that_a_command_says() -> None:
    (read,) = recognise_files({"a.yaml": (FOLDER / "vr-qwen3-8b.yaml").read_text()}, ())[0].values()
    assert "mesh.tp" not in read.request
    assert not read.unmodelled


RECIPE = """model: {model_id: a/b, base_args: ["--max-model-len", "4096"]}
variants:
  default: {precision: bf16}
  fp8: {model_id: a/b-FP8, extra_args: ["--kv-cache-dtype", fp8], tp: 4}
features: {tool: {args: ["--tool-call-parser", x]}, spec: {args: ["--speculative-config", "{}"]}}
opt_in_features: [spec]
hardware_overrides: {blackwell: {extra_args: ["--max-num-seqs", "512"]}, amd: {extra_args: ["--block-size=64"]}}
"""


def test_a_recipes_variants_and_hardware_are_commands() -> None:
    text = (
        RECIPE.replace("model: {", "model:\n  ")
        .replace(", base_args", "\n  base_args")
        .replace('"4096"]}', '"4096"]')
    )
    found = {one.name: one.script for one in servers_in_text("a.yaml", text, parse_yaml)}
    assert list(found) == ["default", "default on blackwell", "fp8", "fp8 on blackwell"]
    assert (
        found["default"]
        == "vllm serve a/b --max-model-len 4096 --tensor-parallel-size=all --tool-call-parser x"
    )
    assert "--kv-cache-dtype fp8 --max-num-seqs 512 --tensor-parallel-size=4" in found["fp8 on blackwell"]


RAY = """from ray.serve.llm import LLMConfig
M = "Qwen/Qwen2.5-7B-Instruct"
config = LLMConfig(
    model_loading_config={{"model_id": "qwen", "model_source": M}},
    engine_kwargs=dict(tensor_parallel_size=2, max_model_len={length}, enforce_eager=True),
)
"""
ENGINE = """from {module} import LLM
def main():
    llm = LLM(model="Qwen/Qwen3-8B", tensor_parallel_size=2, max_model_len=4096, {more})
"""


def python(text: str) -> Any:
    return read_text("a.py", text, PARSERS)


def test_a_configuration_of_ray_in_python() -> None:
    found = python(RAY.format(length=8192))
    assert (
        found.request["@model"],
        found.request["mesh.tp"],
        found.request[LENGTH],
        found.request[EAGER],
    ) == (
        "Qwen/Qwen2.5-7B-Instruct",
        2,
        8192,
        False,
    )
    opened = python(RAY.format(length="read()"))
    assert opened.values["--max-model-len"] == UNSET
    assert LENGTH not in opened.request


def test_engines_that_a_script_makes() -> None:
    found = python(ENGINE.format(module="vllm", more="gpu_memory_utilization=0.5"))
    assert (found.form.name, found.request["mesh.tp"], found.request[SHARE]) == ("vllm", 2, 0.5)
    other = python(ENGINE.format(module="tensorrt_llm", more="kv_cache_config=KvCacheConfig(dtype='fp8')"))
    assert (other.form.name, other.request["serving.kv_dtype"]) == ("tensorrt-llm", "fp8")


@pytest.mark.parametrize(
    "text",
    [
        "from trl import GRPOTrainer\nllm = LLM(model='a')\n",
        "cmd = ['vllm', 'server']\nEngineArgs(\n",
        "x = ['docker', 'serve']\n",
        "def f():\n    LLM(name)\n",
    ],
)
def test_scripts_that_train_or_are_none_start_no_server(text: str) -> None:
    assert servers_in_text("a.py", text, parse_yaml) == ()


def test_a_script_that_grows_its_command_later() -> None:
    text = (
        "N = 4\ncmd = ['vllm', 'serve', 'a/b']\nif fast():\n"
        "    cmd.extend(['--tensor-parallel-size', str(N)])\ncmd += [x]\n"
    )
    (one,) = servers_in_text("a.py", text, parse_yaml)
    assert one.script == "vllm serve a/b --tensor-parallel-size 4 ${x}"


def test_flags_of_a_worker_are_not_the_engines() -> None:
    found = read_text(
        "a.sh", "python3 -m dynamo.vllm --model a/b --is-prefill-worker --connector nixl\n", PARSERS
    )
    assert found.values[WORKER_FLAGS] == "--is-prefill-worker --connector"
    assert (found.unknown, found.unmodelled) == ((), ())
    assert read_text("a.sh", "vllm serve a/b --is-prefill-worker\n", PARSERS).unknown


def test_a_folder_of_the_hubs_cache_is_named_by_its_model() -> None:
    assert hub_name("/x/hub/models--Qwen--Qwen3-8B/snapshots/abc") == "Qwen/Qwen3-8B"
    assert hub_name("/x/Qwen3-8B") == "/x/Qwen3-8B"


def test_a_graph_without_engines_is_told() -> None:
    text = (
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec: {services: {a: {replicas: 1}}}\n"
    )
    with pytest.raises(InputError, match="DynamoGraphDeployment"):
        read_text("a.yaml", text, PARSERS)


def test_values_that_grow_beyond_a_commands_are_open() -> None:
    doubled = "".join(
        f'b{n} = dict(x=b{n - 1}, y=b{n - 1})\ns{n} = f"{{s{n - 1}}}{{s{n - 1}}}"\n' for n in range(1, 400)
    )
    text = f"b0 = dict(x=1)\ns0 = 'x'\n{doubled}LLM(model='a/b', dtype=b399, revision=s399)\n"
    (one,) = servers_in_text("a.py", text[-30_000:] if len(text) > 30_000 else text, parse_yaml)
    assert len(one.script) < 2**13


def test_macros_that_grow_beyond_a_configurations_are_refused() -> None:
    places, models = (
        "${b}" * 2000,
        "".join(f"  m{n}: {{cmd: 'llama-server -m x.gguf ${{a}}'}}\n" for n in range(99)),
    )
    text = f"macros: {{a: '{places}', b: '{'y' * 4000}'}}\nmodels:\n{models}"
    with pytest.raises(InputError, match="text of macros"):
        read_text("a.yaml", text, PARSERS)
