"""Recipes that are a server's command with places, and values that fill them."""

from __future__ import annotations

import pytest

from memsheet.exchange.file_texts import read_text
from memsheet.exchange.servers import servers_in_text
from memsheet.exchange.servers.command_templates import template_servers
from memsheet.guard import parse_yaml
from memsheet.questions.recognised_files import PARSERS

RECIPE = """recipe_version: "1"
name: a
container: vllm-node
{more}
defaults: {{tensor_parallel: 2, max_model_len: 4096, gpu_memory_utilization: 0.8, {given}}}
env: {{VLLM_ATTENTION_BACKEND: FLASHINFER}}
command: |
  vllm serve Qwen/Qwen3-8B \\
    --tensor-parallel-size {{tensor_parallel}} --max-model-len {{max_model_len}} \\
    --gpu-memory-utilization {{gpu_memory_utilization}} --hf-overrides '{{{{"a": 1}}}}' {line}
"""


def test_places_have_the_recipes_own_defaults() -> None:
    found = read_text("a.yaml", RECIPE.format(more="", given="", line=""), PARSERS)
    assert {at: found.request[at] for at in ("@model", "mesh.tp", "serving.memory_fraction")} == {
        "@model": "Qwen/Qwen3-8B",
        "mesh.tp": 2,
        "serving.memory_fraction": 0.8,
    }
    assert found.request["serving.max_model_len"] == 4096
    assert ("--hf-overrides", '{"a": 1}') in [(at, str(said)) for at, said in found.unmodelled]


@pytest.mark.parametrize(("given", "value"), [("", None), ("rows: 48", 48), ("rows: [1, 2]", None)])
def test_a_place_without_a_value_stays_open(given: str, value: int | None) -> None:
    text = RECIPE.format(more="", given=given, line="--max-num-seqs {rows}")
    found = read_text("a.yaml", text, PARSERS)
    assert found.request.get("serving.max_sequences") == value
    assert ("--max-num-seqs" in [at for at, _ in found.unmodelled]) is (value is None)


def test_what_changes_the_servers_own_code_is_left_out_in_words() -> None:
    changed = read_text("a.yaml", RECIPE.format(more="mods: [mods/kernel]", given="", line=""), PARSERS)
    assert ("mods", "mods/kernel") in changed.unmodelled
    plain = read_text("a.yaml", RECIPE.format(more="mods: []", given="", line=""), PARSERS)
    assert "mods" not in [at for at, _ in plain.unmodelled]


def test_a_value_is_text_and_reaches_no_object() -> None:
    text = RECIPE.format(more="", given="", line="--port {host.__class__} {0} {host!r}")
    (server,) = servers_in_text("a.yaml", text, parse_yaml)
    assert server.script.rstrip().endswith("--port {host.__class__} {0} {host!r}")


@pytest.mark.parametrize("command", ["vllm serve Qwen/Qwen3-8B", "echo {tensor_parallel}"])
def test_no_recipe_without_places_or_a_server(command: str) -> None:
    text = f"defaults: {{tensor_parallel: 2}}\ncommand: {command!r}\n"
    assert template_servers("a.yaml", text, parse_yaml) == []


def test_a_recipe_in_which_a_key_stands_twice_is_read_as_its_program_loads_it() -> None:
    """It was read as a shell's text, whose places are no numbers."""
    found = read_text("a.yaml", RECIPE.format(more="container: vllm-node", given="", line=""), PARSERS)
    assert found.request["mesh.tp"] == 2
    assert any("stands twice" in line for line in found.assumed)
