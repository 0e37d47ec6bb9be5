"""Dockerfiles: a server that a container of the image starts, however its command is written."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
FLAGS = '"--model", "Qwen/Qwen3-8B", "--max-model-len", "8192"'
SAID = {"@model": "Qwen/Qwen3-8B", "serving.max_model_len": 8192, "engine_version": "0.10.2"}


def said(text: str) -> dict[str, Any]:
    request = read_text("Dockerfile", text, PARSERS).request
    return {key: request.get(key) for key in SAID}


@pytest.mark.parametrize(
    "text",
    [
        f"FROM vllm/vllm-openai:v0.10.2\nCMD [{FLAGS}]\n",
        f'FROM vllm/vllm-openai:v0.10.2\nENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]\nCMD [{FLAGS}]\n',
        "FROM nvidia/cuda:12.4.1\nRUN pip install \\\n  vllm==0.10.2\nCMD vllm serve Qwen/Qwen3-8B --max-model-len 8192\n",
        'FROM vllm/vllm-openai:v0.10.2\nENV MODEL=Qwen/Qwen3-8B LENGTH="8192"\nENTRYPOINT ["/bin/bash", "-c", "vllm serve $MODEL --max-model-len $LENGTH"]\n',
        'FROM ubuntu:24.04 AS build\nCMD ["make"]\nFROM vllm/vllm-openai:v0.10.2\nENV MODEL Qwen/Qwen3-8B\nENTRYPOINT vllm serve $MODEL \\\n  --max-model-len 8192\n',
    ],
)  # fmt: skip
def test_every_form_of_a_command_is_read(text: str) -> None:
    assert said(text) == SAID


def test_a_default_of_the_build_is_told() -> None:
    command = "CMD vllm serve Qwen/Qwen3-8B --max-model-len $LENGTH"
    text = f"FROM vllm/vllm-openai:v0.10.2\nARG LENGTH=8192\n{command}\n"
    found = read_text("Dockerfile", text, PARSERS)
    assert found.request["serving.max_model_len"] == 8192
    assert found.unmodelled == ()
    assert any("LENGTH" in one for one in found.assumed)


def test_an_image_of_something_else_is_none() -> None:
    with pytest.raises(InputError, match="not recognised"):
        read_text("Dockerfile", 'FROM python:3.12\nCMD ["python", "app.py"]\n', PARSERS)
