"""Commands of servers that stand whole in somebody's own YAML or JSON, whatever their keys are called."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.exchange.servers import servers_in_text
from memsheet.guard import parse_yaml
from memsheet.questions.recognised_files import recognise_files

LENGTH = "serving.max_model_len"
FOLDED = """single:
  enabled: true
resources: {nvidia.com/gpu: "4"}
cli: "bash start-ray.sh leader --ray_cluster_size=$SIZE;
      python3 -m vllm.entrypoints.openai.api_server
        --model 'a/b-7B'
        --tensor-parallel-size 4
        --pipeline-parallel-size 2
        --max-model-len 8192"
"""
SAID: dict[str, dict[str, Any]] = {
    FOLDED: {"@model": "a/b-7B", "mesh.tp": 4, "mesh.pp": 2, LENGTH: 8192},
    "presets:\n- name: small\n  start: vllm serve a/b-7B --max-model-len 4096 -tp 2\n": {"@model": "a/b-7B", "mesh.tp": 2, LENGTH: 4096},
    "worker: {command: [vllm, serve, a/b-7B], args: [--max-model-len, '4096']}\n": {"@model": "a/b-7B", LENGTH: 4096},
    '{"launch": {"cmd": "python -m sglang.launch_server --model-path a/b-7B --tp 2 --context-length 4096"}}': {"@model": "a/b-7B", "mesh.tp": 2, LENGTH: 4096},
}  # fmt: skip


@pytest.mark.parametrize("text", SAID)
def test_a_command_is_read_wherever_it_stands_as_a_whole(text: str) -> None:
    (read,) = recognise_files({"values.yaml": text}, ())[0].values()
    assert {key: read.request.get(key) for key in SAID[text]} == SAID[text]
    assert any("starts" in one for one in read.assumed)


def test_each_command_is_a_server_of_its_own_by_its_place() -> None:
    text = "presets:\n" + "".join(
        f"- name: {name}\n  start: vllm serve a/{name} --max-model-len 4096\n" for name in ("x", "y", "x")
    )
    assert [one.name for one in servers_in_text("values.yaml", text, parse_yaml)] == [
        "presets.x.start",
        "presets.y.start",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "notes: start it with vllm serve a/b-7B\nname: mine\n",
        "model: a/b-7B\ndescription: |\n  vllm serve a/b-7B --max-model-len 4096\n",
        "rows:\n- prompt: vllm serve a/b-7B\n",
    ],
)
def test_a_command_that_is_told_in_prose_is_no_server_of_its_own(text: str) -> None:
    assert servers_in_text("values.yaml", text, parse_yaml) == ()


def test_a_file_that_trains_starts_no_server_by_its_values() -> None:
    text = (
        "model: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 2\n"
        "server: vllm serve Qwen/Qwen2.5-7B --max-model-len 4096\n"
    )
    assert servers_in_text("job.yaml", text, parse_yaml) == ()
