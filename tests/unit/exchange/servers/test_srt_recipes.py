"""Recipes of srtctl: a worker of each kind is a server with the recipe's flags."""

from __future__ import annotations

import pytest

from memsheet.exchange.servers import servers_in_text
from memsheet.guard import parse_yaml
from memsheet.questions.recognised_files import recognise_files

RECIPE = """name: mine
model: {path: "PATH", container: "x", precision: "PRECISION"}
resources: {gpu_type: h100, prefill_nodes: 1, decode_nodes: 1, gpus_per_node: 8}
backend:
  sglang_config:
    prefill: {served-model-name: "SERVED", tp-size: 4, context-length: 8192, disable-radix-cache: true, skip-tokenizer-init: false}
    decode: {served-model-name: "SERVED", tp-size: 2, context-length: 4096}
"""
ENGINES = {
    "sglang_config": ("sglang", {"tp-size": 2, "context-length": 4096}),
    "vllm_config": ("vllm", {"tensor-parallel-size": 2, "max-model-len": 4096}),
    "trtllm_config": ("tensorrt-llm", {"tensor_parallel_size": 2, "max_seq_len": 4096}),
}  # fmt: skip


def recipe(path: str = "hf:Qwen/Qwen3-32B", precision: str = "bf16", served: str = "Qwen/Qwen3-32B") -> str:
    return RECIPE.replace("PATH", path).replace("PRECISION", precision).replace("SERVED", served)


@pytest.mark.parametrize(("work", "ranks", "length"), [("prefill", 4, 8192), ("decode", 2, 4096)])
def test_each_kind_of_worker_is_a_server_with_its_own_flags(work: str, ranks: int, length: int) -> None:
    names = [one.name for one in servers_in_text("r.yaml", recipe(), parse_yaml)]
    assert names == ["prefill", "decode"]
    (read,) = recognise_files({"r.yaml": recipe()}, (), work)[0].values()
    assert (read.request["mesh.tp"], read.request["serving.max_model_len"]) == (ranks, length)
    assert read.values.get("--disable-radix-cache") is (True if work == "prefill" else None)
    assert "--skip-tokenizer-init" not in read.values


@pytest.mark.parametrize("key", ENGINES)
def test_the_flags_are_those_of_the_engine_that_a_recipe_names(key: str) -> None:
    form, flags = ENGINES[key]
    text = f"model: {{path: 'hf:Qwen/Qwen3-32B'}}\nbackend:\n  {key}:\n    aggregated: {flags}\n"
    (read,) = recognise_files({"r.yaml": text}, ())[0].values()
    assert read.form.name == form
    wanted = ("Qwen/Qwen3-32B", 2, 4096)
    assert tuple(read.request.get(at) for at in ("@model", "mesh.tp", "serving.max_model_len")) == wanted


@pytest.mark.parametrize(
    ("path", "precision", "served", "model"),
    [
        ("dsr1", "fp8", "x", "deepseek-ai/DeepSeek-R1-0528"),
        ("dsr1", "fp4", "deepseek-ai/DeepSeek-R1", "nvidia/DeepSeek-R1-0528-FP4"),
        ("ours", "fp8", "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("hf:Qwen/Qwen3-32B", "bf16", "other", "Qwen/Qwen3-32B"),
    ],
)
def test_a_clusters_own_name_of_a_model_is_a_guess_that_is_told(
    path: str, precision: str, served: str, model: str
) -> None:
    (read,) = recognise_files({"r.yaml": recipe(path, precision, served)}, (), "decode")[0].values()
    assert read.request["@model"] == model
    assert ("model.path" in dict(read.unmodelled)) is not path.startswith("hf:")
