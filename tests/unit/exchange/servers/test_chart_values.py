"""Servers in values of charts that anybody wrote, and of llm-d's."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.exchange.servers import servers_in_text
from memsheet.guard import parse_yaml
from memsheet.questions.recognised_files import recognise_files

LENGTH, SHARE = "serving.max_model_len", "serving.memory_fraction"
IMAGE = "image: {repository: vllm/vllm-openai, tag: v0.10.2}\n"
SAID: dict[str, dict[str, Any]] = {
    IMAGE + 'args: ["--model", "a/b-7B", "--max-model-len=8192", "--tensor-parallel-size", "2"]\n': {"@model": "a/b-7B", LENGTH: 8192, "mesh.tp": 2},
    "image: vllm/vllm-openai:v0.10.0\nmodel: a/b-7B\nextraArgs:\n- --max-model-len=4096\n- --gpu-memory-utilization\n- '0.8'\n": {
        "@model": "a/b-7B", LENGTH: 4096, SHARE: 0.8, "engine_version": "0.10.0",
    },
    "modelName: a/b-7B\nimage: {repository: registry.example.com:5000/mine/vllm-openai, tag: v0.11.2}\nextraArgs: [--tensor-parallel-size, '2']\n": {
        "@model": "a/b-7B", "mesh.tp": 2, "engine_version": "0.11.2",
    },
    "vllm:\n  image: vllm/vllm-openai:v0.10.0\n  model: {name: a/b-7B}\n  args: {max-model-len: 4096}\n": {"@model": "a/b-7B", LENGTH: 4096},
    "image: {repository: ghcr.io/huggingface/text-generation-inference, tag: 3.3.4}\nmodel: a/b-7B\nargs: [--max-total-tokens, '4096']\n": {
        "@model": "a/b-7B", LENGTH: 4096,
    },
}  # fmt: skip
LLM_D = """modelArtifacts: {uri: "hf://a/b-7B", name: served}
decode:
  replicas: 2
  parallelism: {tensor: 2, data: 1}
  containers:
  - {name: vllm, image: "ghcr.io/llm-d/llm-d-cuda:v0.4.0", modelCommand: vllmServe, args: [--max-model-len=4096]}
prefill:
  create: CREATE
  parallelism: {tensor: 1}
  containers:
  - {name: vllm, image: "ghcr.io/llm-d/llm-d-cuda:v0.4.0", command: [sh, -c], args: ["vllm serve a/b-7B --tensor-parallel-size $TP_SIZE"]}
"""


@pytest.mark.parametrize("text", SAID)
def test_values_are_read_as_the_container_that_a_chart_makes(text: str) -> None:
    (read,) = recognise_files({"values.yaml": text}, ())[0].values()
    assert {key: read.request.get(key) for key in SAID[text]} == SAID[text]
    assert not read.unknown


@pytest.mark.parametrize(("create", "names"), [("true", ["decode", "prefill"]), ("false", ["decode"])])
def test_each_role_of_a_model_service_is_a_server(create: str, names: list[str]) -> None:
    text = LLM_D.replace("CREATE", create)
    assert [one.name for one in servers_in_text("values.yaml", text, parse_yaml)] == names
    wanted = {"decode": {"mesh.tp": 2, LENGTH: 4096}, "prefill": {"mesh.tp": 1}}
    for name in names:
        (read,) = recognise_files({"values.yaml": text}, (), name)[0].values()
        assert {key: read.request.get(key) for key in wanted[name]} == wanted[name]
        assert read.request["@model"] == "a/b-7B"


def test_a_model_service_object_is_read_like_values() -> None:
    inner = "\n".join(f"  {line}" for line in LLM_D.replace("CREATE", "false").splitlines())
    text = f"apiVersion: llm-d.ai/v1alpha1\nkind: ModelService\nspec:\n{inner}\n"
    assert [one.name for one in servers_in_text("a.yaml", text, parse_yaml)] == ["decode"]
