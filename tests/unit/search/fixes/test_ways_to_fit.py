"""A job that fits nowhere says what would make it: each way, asked by itself, fits with the bytes that were
said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.catalog import find_device
from memsheet.cli import main
from memsheet.report.json.sheet import sheet_document
from memsheet.report.screen.checked import render_checked
from memsheet.report.shared.checked import Checked
from memsheet.report.shared.look import Look
from slow_cases import first_quick

ASKED = {
    "train": ("train", "llama-3.1-70b", {"gpus": "1xRTX4090", "seq_len": 2048}),
    "transformers": ("infer", "llama-3.1-70b", {"gpus": "1xRTX4090", "engine": "transformers", "max_model_len": 1024, "prompt_tokens": 1024}),
    "llama.cpp": ("infer", "llama-3.1-70b", {"gpus": "1xRTX4090", "engine": "llama.cpp", "quantize": "gguf:Q4_K_M", "max_model_len": 4096}),
    "experts": ("infer", "qwen3-30b-a3b", {"gpus": "1xRTX4070", "engine": "llama.cpp", "quantize": "gguf:Q4_K_M", "max_model_len": 4096}),
    "apple": ("infer", "llama-3.1-70b", {"gpus": "m4-max-48gb", "quantize": "gguf:Q4_K_M", "max_model_len": 24576}),
}  # fmt: skip
SHORT = {
    "serving.gpu_layers": "gpu_layers", "serving.host_experts": "host_experts", "quantization.weights": "quantize", "adapter.rank": "lora_rank",
    "recompute.mode": "recompute", "engine": "engine", "gpus": "gpus", "per_node": "per_node",
}  # fmt: skip


def again(task, model, asked, changes):
    given = {SHORT.get(key, key): value for key, value in changes.items() if key != "model"}
    return getattr(memsheet, task)(changes.get("model", model), **{**asked, **given}, fix=False)


@pytest.mark.parametrize("name", first_quick(ASKED, 2))
def test_every_way_fits_when_it_is_asked(name):
    task, model, asked = ASKED[name]
    answer = getattr(memsheet, task)(model, **asked)
    assert answer.verdict.result is Result.DOES_NOT_FIT
    assert answer.ways_to_fit
    for way in answer.ways_to_fit:
        alone = again(task, model, asked, way.changes)
        assert alone.verdict.result is Result.FITS, way.words
        assert alone.verdict.device == way.device
    assert [way["words"] for way in sheet_document(answer)["ways_to_fit"]] == [
        way.words for way in answer.ways_to_fit
    ]


@pytest.mark.parametrize(("name", "key", "step"), [("llama.cpp", "serving.gpu_layers", 1), ("apple", "serving.gpu_layers", 1), ("experts", "serving.host_experts", -1)])  # fmt: skip
def test_layers_on_the_card_are_as_many_as_fit(name, key, step):
    task, model, asked = ASKED[name]
    found = next(way for way in getattr(memsheet, task)(model, **asked).ways_to_fit if key in way.changes)
    more = again(task, model, asked, {**found.changes, key: found.changes[key] + step})
    assert more.verdict.result is not Result.FITS


def test_the_longest_that_fits_is_a_way_where_nobody_said_a_length():
    asked = {"gpus": "1xRTX5090", "engine": "llama.cpp", "quantize": "gguf:Q4_K_M"}
    answer = memsheet.infer("qwen3-30b-a3b-2507", **asked)
    (way,) = (way for way in answer.ways_to_fit if "serving.max_model_len" in way.changes)
    tokens = way.changes["serving.max_model_len"]
    results = [
        memsheet.infer("qwen3-30b-a3b-2507", **asked, max_model_len=n, fix=False).verdict.result
        for n in (tokens, tokens + 1024)
    ]
    assert results[0] is Result.FITS
    assert results[1] is not Result.FITS
    said = memsheet.infer("qwen3-30b-a3b-2507", **asked, max_model_len=200_000)
    lengths = [way.changes.get("serving.max_model_len", 0) for way in said.ways_to_fit]
    assert max(lengths) < 200_000  # the size of a cache, which a shorter one takes the place of
    other = memsheet.infer("llama-3.1-70b", gpus="1xA100-80GB", engine="transformers", max_model_len=100_000)
    assert all("serving.max_model_len" not in way.changes for way in other.ways_to_fit)


def test_what_fits_names_no_other_way():
    assert not memsheet.infer("gpt2", gpus="1xRTX4090").ways_to_fit
    assert "ways_to_fit" not in sheet_document(memsheet.infer("gpt2", gpus="1xRTX4090"))


@pytest.mark.parametrize(
    "line",
    [
        ("max-model-len", "llama-3.1-70b", "--gpus", "1xRTX4090", "--engine", "transformers"),
        pytest.param(("seq-len", "llama-3.1-70b", "--gpus", "1xRTX4090"), marks=pytest.mark.slow),
        pytest.param(
            ("gpus", "llama-3.1-70b", "--gpus", "RTX4090", "--seq-len", "4096", "--most", "2"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_solving_that_finds_nothing_names_what_would(line, capsys):
    assert main(["solve", *line, "--json"]) == 10
    found = json.loads(capsys.readouterr().out)
    assert found["cheapest_fix"] is not None or found["ways_to_fit"]
    assert main(["solve", *line]) == 10
    assert "To fit" in (out := capsys.readouterr().out) or "What would make it fit" in out


NOWHERE = (
    ("llama-3.1-70b", {"gpus": "H100-80GB", "engine": "fsdp2", "zero": 3, "seq_len": 4096}, None),
    ("llama-3.1-70b", {"gpus": "H100-80GB", "engine": "deepspeed", "zero": 3, "seq_len": 4096}, None),
    ("qwen2.5-72b", {"gpus": "H100-80GB", "engine": "fsdp2", "zero": 3, "seq_len": 4096}, None),
    ("qwen2.5-72b", {"gpus": "A100-80GB", "engine": "deepspeed", "zero": 3, "seq_len": 2048}, 8),
    ("llama-3.1-8b", {"gpus": "A100-80GB", "engine": "fsdp2", "zero": 3, "seq_len": 2048}, 1),
    ("llama-3.1-8b", {"gpus": "A100-80GB", "per_node": 4, "engine": "fsdp2", "zero": 3, "seq_len": 8192}, 4),
)


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=pytest.mark.slow) if place < 3 else place for place in range(len(NOWHERE))],
)
def test_a_change_names_the_fewest_gpus_it_fits_on(place):
    """Where no number of GPUs that was looked at holds the job: with the change the same search ends at the
    number that was said, and it fits.
    """
    model, asked, most = NOWHERE[place]
    found = memsheet.solve("gpus", model, most=most, **asked)
    assert found.found is None
    assert found.ways_to_fit
    for way in found.ways_to_fit:
        edits = {SHORT[key]: value for key, value in way.changes.items() if key not in ("gpus", "per_node")}
        count = int(way.changes["gpus"].partition("x")[0])
        alone = memsheet.solve(
            "gpus", model, most=most if most and count <= most else None, **{**asked, **edits}
        )
        assert alone.found is not None, way.words
        assert alone.found.value == count, way.words
        answer = again("train", model, asked, way.changes)
        assert (answer.verdict.result, answer.verdict.device) == (Result.FITS, way.device), way.words


SHARED = ("gb10", "m4-max-64gb", "RyzenAIMax+395-128GB")
"""Machines whose only GPU has its memory from the processor's."""


@pytest.mark.parametrize("gpus", SHARED)
@pytest.mark.parametrize("model", ["llama-3.1-70b", "qwen3-235b-a22b"])
def test_shared_memory_is_offered_once(gpus, model):
    answer = memsheet.infer(model, gpus=f"1x{gpus}", engine="llama.cpp", max_model_len=4096)
    device = find_device(gpus)
    assert answer.verdict.result is Result.DOES_NOT_FIT
    assert all("gpus" not in way.changes for way in answer.ways_to_fit)
    assert all(way.device.low + way.host_bytes <= device.shared_bytes for way in answer.ways_to_fit)


@pytest.mark.parametrize("gpus", SHARED)
def test_what_a_shared_machine_keeps_on_its_host_is_on_its_device_too(gpus):
    answer = memsheet.infer(
        "qwen3-235b-a22b", gpus=gpus, engine="llama.cpp", max_model_len=4096, gpu_layers=0
    )
    assert answer.verdict.result is Result.DOES_NOT_FIT
    assert answer.verdict.host_short_bytes > 0


def test_a_board_of_several_shared_devices_may_have_more():
    board = find_device("MI300A")
    assert board.shared_bytes
    assert not board.alone


@pytest.mark.parametrize(
    ("model", "gpus"), [("gemma-2-27b", "4xRTX4090"), ("olmo-2-13b", "1xA100-40GB"), ("olmo-7b", "1xRTX4090")]
)
def test_weights_released_in_more_are_offered_in_sixteen_bits(model: str, gpus: str) -> None:
    how: dict[str, Any] = {"gpus": gpus, "engine": "transformers", "max_model_len": 1024}
    ways = memsheet.infer(model, **how).ways_to_fit
    way = next(one for one in ways if one.changes == {"precision.name": "bf16-pure"})
    after = memsheet.infer(model, **how, precision="bf16-pure")
    assert after.verdict is not None
    assert after.verdict.result is Result.FITS
    assert after.verdict.device == way.device
    named = memsheet.infer(model, **how, precision="fp32").ways_to_fit
    assert not any("precision.name" in one.changes for one in named)


def test_a_file_known_by_its_name_says_what_is_open_and_what_is_expected_to_fit(tmp_path: Path) -> None:
    command = "llama-server -m Llama-3.3-70B-Instruct-UD-Q4_K_XL.gguf -np 8 -ngl 99 -c"

    def checked(cells: int) -> Checked:
        (tmp_path / "serve.sh").write_text(f"{command} {cells}\n")
        return memsheet.check(tmp_path / "serve.sh", gpus="2xRTX3090")

    found = checked(65536)
    assert found.answer is not None
    assert found.result is Result.DOES_NOT_FIT
    ways = [way for way in found.answer.ways_to_fit if not {"gpus", "model"} & way.changes.keys()]
    lengths = {way.changes.get("serving.kv_dtype"): way.changes.get("serving.max_model_len") for way in ways}
    assert lengths["gguf:Q8_0"] > 1.5 * lengths[None] > 8192
    again = checked(lengths[None]).answer
    assert again is not None
    assert again.verdict is not None
    assert (again.verdict.result, again.verdict.headroom_bytes >= 0) == (Result.UNCERTAIN, True)
    assert any("types in the file" in note for note in again.notes)
    text = render_checked(found, Look(width=100, typed=(("gpus", "2xRTX3090", {"gpus": "2xRTX3090"}),)))
    assert f"replace  --ctx-size 65536 by --ctx-size {lengths[None]}" in text
    assert "--cache-type-k q8_0" in text
    assert "replace  --gpus 2xRTX3090 by --gpus 4xRTX3090" in text
    assert "add  --model llama" in text


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("llama-3.1-70b", {"gpus": "1xRTX4090", "engine": "llama.cpp", "quantize": "gguf:Q4_K_M", "max_model_len": 32768}),
        ("llama3.3:70b", {"gpus": "1xRTX4090", "engine": "llama.cpp", "max_model_len": 32768}),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", {"gpus": "1xRTX4090", "engine": "transformers", "max_model_len": 2048, "prompt_tokens": 2048}),
    ],
)  # fmt: skip
def test_a_smaller_model_keeps_the_bits_whoever_said_them(model, asked):
    """A flag, or the model's own name, which the smaller one's does not say again."""
    answer = memsheet.infer(model, **asked)
    way = next(way for way in answer.ways_to_fit if "model" in way.changes)
    alone = again("infer", model, asked, way.changes)
    assert alone.plan.quantization is not None
    assert alone.plan.quantization.weights.name == answer.plan.quantization.weights.name
    assert alone.verdict.device == way.device


def test_a_shorter_sequence_comes_before_a_smaller_model():
    asked = {"gpus": "1xRTX4090", "lora_rank": 16, "quantize": "nf4", "seq_len": 65536, "recompute": "full", "loss": "fused", "offload": "activations"}  # fmt: skip
    ways = memsheet.train("qwen2.5-14b", **asked).ways_to_fit
    keys = [key for way in ways for key in ("seq_len", "model") if key in way.changes]
    assert keys == ["seq_len", "model"]
    tokens = next(way.changes["seq_len"] for way in ways if "seq_len" in way.changes)
    results = [
        again("train", "qwen2.5-14b", asked, {"seq_len": length}).verdict.result
        for length in (tokens, tokens + 1024)
    ]
    assert results[0] is Result.FITS
    assert results[1] is not Result.FITS
