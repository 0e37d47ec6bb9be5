"""Servers in the values of charts and in services of KServe, read as the commands that they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.plan_files import write_format_files
from memsheet.exchange.servers import servers_in_text
from memsheet.questions.recognised_files import PARSERS

CHART = """servingEngineSpec:
  modelSpec:
  - name: "llama3"
    repository: "vllm/vllm-openai"
    tag: "v0.10.2"
    modelURL: "meta-llama/Llama-3.1-8B-Instruct"
    replicaCount: 1
    requestGPU: 2
    vllmConfig:
      maxModelLen: 4096
      dtype: "bfloat16"
      tensorParallelSize: 2
      maxNumSeqs: 32
      gpuMemoryUtilization: 0.8
      extraArgs: ["--kv-cache-dtype", "fp8"]
"""
SERVICE = """apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: llama}
spec:
  model: {uri: "hf://meta-llama/Llama-3.1-8B-Instruct", name: llama}
  parallelism: {tensor: 2}
  template:
    containers:
    - name: main
      env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 4096 --max-num-seqs 32 --dtype bfloat16
        --kv-cache-dtype fp8 --gpu-memory-utilization 0.8"}]
      resources: {limits: {nvidia.com/gpu: "2"}}
"""
PREDICTOR = """apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      storageUri: "hf://meta-llama/Llama-3.1-8B-Instruct"
      args: ["--model_name=llama", "--tensor-parallel-size=2", "--max-model-len=4096", "--max-num-seqs=32",
        "--dtype=bfloat16", "--kv-cache-dtype=fp8", "--gpu-memory-utilization=0.8"]
"""
SET = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llama}
spec:
  leaderWorkerTemplate:
    leaderTemplate:
      spec:
        containers:
        - image: vllm/vllm-openai:v0.10.2
          command: [vllm, serve, meta-llama/Llama-3.1-8B-Instruct, --tensor-parallel-size, "2"]
          args: [--max-model-len, "4096", --max-num-seqs, "32", --dtype, bfloat16, --kv-cache-dtype, fp8,
            --gpu-memory-utilization, "0.8"]
"""
ALL = {"values.yaml": CHART, "service.yaml": SERVICE, "predictor.yaml": PREDICTOR, "set.yaml": SET}


def said(name: str, text: str) -> dict[str, Any]:
    return dict(read_text(name, text, PARSERS).request)


@pytest.mark.parametrize("name", ALL)
def test_each_is_the_same_command(name: str) -> None:
    found = said(name, ALL[name])
    wanted = {
        "task": "infer", "engine": "vllm", "@model": "meta-llama/Llama-3.1-8B-Instruct", "mesh.tp": 2, "serving.max_model_len": 4096,
        "serving.max_sequences": 32, "serving.kv_dtype": "fp8", "serving.memory_fraction": 0.8, "precision.parameters": "bf16",
    }  # fmt: skip
    assert {key: found.get(key) for key in wanted} == wanted


def test_the_release_is_that_of_the_image() -> None:
    assert said("values.yaml", CHART)["engine_version"] == "0.10.2"


def test_a_service_on_a_volume_is_of_the_model_that_it_names() -> None:
    named = SERVICE.replace("hf://meta-llama/Llama-3.1-8B-Instruct", "pvc://models").replace(
        "name: llama}\n  parallelism", "name: meta-llama/Llama-3.1-8B-Instruct}\n  parallelism"
    )
    assert said("service.yaml", named)["@model"] == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("name", ALL)
def test_cards_that_a_command_does_not_take_stay_idle(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(ALL[name])
    checked = memsheet.check(file, gpus="8xH100-80GB")
    assert checked.answer is not None
    assert checked.answer.cluster is not None
    assert checked.answer.cluster.count == 2
    assert checked.answer.verdict is not None
    assert checked.answer.verdict.result is Result.FITS
    assert any("takes no more of 8xH100-80GB" in one for one in checked.assumed)


def test_a_group_of_pods_is_one_server_on_the_cards_of_all() -> None:
    words = "[python3, -m, sglang.launch_server, --model-path, m, --tp, '16', --nnodes, $(LWS_GROUP_SIZE)]"
    pod = f"{{spec: {{containers: [{{command: {words}, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}"
    group = f"size: 2\n    leaderTemplate: {pod}\n    workerTemplate: {pod}\n"
    text = SET.partition("    leaderTemplate")[0] + f"    {group}"
    assert len(servers_in_text("set.yaml", text, PARSERS["yaml"])) == 1
    found = read_text("set.yaml", text, PARSERS)
    assert (found.request["@nodes"], found.request["mesh.tp"], found.unmodelled) == (2, 16, ())


SERVED = {
    "task": "infer", "engine": "vllm", "engine_version": "0.33.0", "serving.max_model_len": 512, "serving.kv_dtype": "bf16", "allocator.expandable_segments": True,
    **{f"precision.{key}": "bf16" for key in ("parameters", "compute", "gradients", "reduce", "moments")}, "serving.cuda_graphs": True, "@gpus": 1, "@per_node": 1, "@nodes": 1, "@accumulation": 1, "@model": "m",
}  # fmt: skip


@pytest.mark.parametrize("name", ["a'b\"c", "; touch pwned", "# x", "a b", "\\", "é", "x: 1", "- a"])
def test_a_models_name_is_one_value_of_a_chart(name: str) -> None:
    form = find_format("helm")
    wanted = {**SERVED, "@model": name}
    if name.startswith("-"):
        with pytest.raises(InputError, match="command"):
            write_format_files(form, wanted)
        return
    found = read_text(form.file, write_format_files(form, wanted)[form.file], PARSERS)
    assert found.request["@model"] == name
    assert found.request["allocator.expandable_segments"] is True


@pytest.mark.parametrize("name", ["$(id)", "a\nb"])
def test_a_name_that_a_chart_would_fill_in_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="model"):
        write_format_files(find_format("helm"), {**SERVED, "@model": name})


def test_a_length_that_a_chart_would_print_with_an_exponent_is_a_flag() -> None:
    text = write_format_files(find_format("helm"), {**SERVED, "serving.max_model_len": 2**20})["values.yaml"]
    assert "--max-model-len=1048576" in text
    assert read_text("values.yaml", text, PARSERS).request["serving.max_model_len"] == 2**20


OWN_CHART = """image:
  repository: "vllm/vllm-openai"
  tag: "v0.10.2"
  command: ["vllm", "serve", "/data/", "--max-model-len", "4096", "--tensor-parallel-size", "2"]
containerPort: 8000
replicaCount: 1
resources:
  requests: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}
  limits: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}
extraInit: {s3modelpath: "store/Llama-3.1-8B-Instruct", pvcStorage: "50Gi"}
"""


def test_the_servers_own_chart_is_its_command_with_the_model_of_its_volume() -> None:
    found = read_text("values.yaml", OWN_CHART, PARSERS)
    assert found.form.name == "vllm"
    wanted = {
        "@model": "store/Llama-3.1-8B-Instruct",
        "mesh.tp": 2,
        "serving.max_model_len": 4096,
        "engine_version": "0.10.2",
    }
    assert {key: found.request.get(key) for key in wanted} == wanted
    assert any("s3modelpath" in one for one in found.assumed)
    assert any("the command takes 2" in str(held) for _, held in found.unmodelled)


def test_a_model_that_a_charts_command_names_is_the_model() -> None:
    named = OWN_CHART.replace("/data/", "Qwen/Qwen3-8B")
    assert said("values.yaml", named)["@model"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    "text",
    [
        "resources: {limits: {nvidia.com/gpu: 1}}\nreplicaCount: 1\n",
        "num_nodes: 2\nmodel: m\n",
    ],
)
def test_resources_of_kubernetes_are_no_task_of_skypilot(text: str) -> None:
    with pytest.raises(InputError, match="not recognised"):
        read_text("values.yaml", text, PARSERS)


RUNTIME = """apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: mine}
spec:
  supportedModelFormats: [{name: vLLM, autoSelect: true}]
  containers:
    - name: kserve-container
      image: vllm/vllm-openai:v0.8.5
      command: ["python", "-m", "vllm.entrypoints.openai.api_server"]
      args: ["--port=8080", "--model=/mnt/models", "--served-model-name={{.Name}}"]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: qwen}
spec:
  predictor:
    model:
      modelFormat: {name: vLLM}
      %s
      storageUri: hf://Qwen/Qwen3-8B
      args: ["--max-model-len=8192"]
      resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.mark.parametrize("named", ["runtime: mine", ""])
def test_a_predictor_is_served_by_the_runtime_beside_it(named: str) -> None:
    found = read_text("isvc.yaml", RUNTIME % named, PARSERS)
    assert found.request["@model"] == "Qwen/Qwen3-8B"
    assert found.request["serving.max_model_len"] == 8192
    assert found.request["engine_version"] == "0.8.5"


FROM_MAP = "{name: %s, valueFrom: {configMapKeyRef: {name: settings, key: %s}}}"
CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {MODEL: Qwen/Qwen3-8B, LENGTH: "8192"}
---
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: vllm
      image: vllm/vllm-openai:v0.10.2
      args: ["--model", "$(MODEL)", "--max-model-len", "$(LENGTH)"]
      %s
"""


@pytest.mark.parametrize(
    ("variables", "length"),
    [
        ("envFrom: [{configMapRef: {name: settings}}]", 8192),
        ("envFrom: [{configMapRef: {name: settings}}]\n      env: [{name: LENGTH, value: '4096'}]", 4096),
        (f"env: [{', '.join(FROM_MAP % (name, name) for name in ('MODEL', 'LENGTH'))}]", 8192),
    ],
)
def test_variables_of_a_map_beside_a_pod_have_its_values(variables: str, length: int) -> None:
    found = read_text("pod.yaml", CONFIG_MAP % variables, PARSERS)
    assert found.request["@model"] == "Qwen/Qwen3-8B"
    assert found.request["serving.max_model_len"] == length


RUNTIME_OBJECT = """apiVersion: production-stack.vllm.ai/v1alpha1
kind: VLLMRuntime
metadata: {name: served}
spec:
  model: {modelURL: a/b-7B, enableLoRA: true, maxModelLen: 4096, dtype: bfloat16, maxNumSeqs: 32}
"""
OPTIONS = "tensorParallelSize: 2, gpuMemoryUtilization: '0.8', maxLoras: 4, enablePrefixCaching: false, extraArgs: [--max-lora-rank, '32']"  # fmt: skip


@pytest.mark.parametrize(
    "beside", ["  vllmConfig: {%s}\n  deploymentConfig: {resources: {gpu: '2'}}\n", "  %s\n"]
)
def test_an_object_of_the_production_stack_is_the_command_that_its_operator_makes(beside: str) -> None:
    told = (
        OPTIONS
        if "{" in beside
        else OPTIONS.replace(", ", "\n  ").replace("[--max-lora-rank\n  ", "[--max-lora-rank, ")
    )
    read = read_text("runtime.yaml", RUNTIME_OBJECT + beside % told, PARSERS)
    asked = {
        at: read.request[at]
        for at in (
            "@model",
            "mesh.tp",
            "serving.max_model_len",
            "serving.max_sequences",
            "serving.memory_fraction",
        )
    }
    assert tuple(asked.values()) == ("a/b-7B", 2, 4096, 32, 0.8)
    assert read.values["--enable-lora"] is True
    assert read.values["--max-lora-rank"] == 32
    assert read.values["--enable-prefix-caching"] is False


PROFILED = """apiVersion: kubeai.org/v1
kind: Model
metadata: {name: served}
spec:
  url: %s
  engine: VLLM
  env: {VLLM_ATTENTION_BACKEND: FLASHINFER}
  args: [--max-model-len=16384, --tensor-parallel-size=2, --kv-cache-dtype=fp8]
  resourceProfile: %s
"""


@pytest.mark.parametrize(("cards", "short"), [(2, False), (1, True)])
def test_a_model_of_an_operator_is_served_on_the_cards_of_its_profile(cards: int, short: bool) -> None:
    read = read_text("model.yaml", PROFILED % ("hf://a/b-7B", f"nvidia-gpu-h100:{cards}"), PARSERS)
    asked = {at: read.request[at] for at in ("@model", "mesh.tp", "serving.max_model_len")}
    assert tuple(asked.values()) == ("a/b-7B", 2, 16384)
    assert any("nvidia.com/gpu gives 1" in str(told) for _, told in read.unmodelled) is short


def test_a_model_of_an_operator_on_no_cards_is_none() -> None:
    with pytest.raises(InputError, match="a kind that is not read"):
        read_text("model.yaml", PROFILED % ("hf://a/b-7B", "cpu:4"), PARSERS)


def test_a_catalogue_of_an_operators_models_has_a_server_each() -> None:
    text = "catalog:\n" + "".join(
        f"  {name}: {{engine: VLLM, url: 'hf://a/{name}-7B', args: [--max-model-len=4096], "
        "resourceProfile: 'nvidia-gpu-l4:1'}\n"
        for name in ("first", "second")
    )
    found = servers_in_text("values.yaml", text, PARSERS["yaml"])
    assert [one.name for one in found] == ["first", "second"]


@pytest.mark.parametrize(("text", "on"), [(RUNTIME_OBJECT, "  lmCacheConfig: {enabled: true}\n"), (CHART, "    lmcacheConfig: {enabled: true}\n")])  # fmt: skip
def test_a_cache_that_is_kept_elsewhere_too_is_told(text: str, on: str) -> None:
    told = [read_text("a.yaml", held, PARSERS).request for held in (text, text + on)]
    assert [one.get("serving.kv_connector") for one in told] == [None, "LMCacheConnectorV1"]
