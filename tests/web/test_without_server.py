"""The page without a server: the same answers, to the byte, and the same states for everybody."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from test_journeys import SMALL, STATES, violations

from conftest import PYODIDE
from memsheet.cli import main
from memsheet.questions.ask import ask
from memsheet.web.app import make_app

pytestmark = pytest.mark.web
RUNNER = """
import { loadPyodide } from "%(pyodide)s/pyodide.mjs";
import fs from "fs";
const python = await loadPyodide({ indexURL: "%(pyodide)s/" });
python.unpackArchive(new Uint8Array(fs.readFileSync("%(site)s/memsheet.zip")), "zip", { extractDir: "/memsheet" });
python.runPython(`
import json, sys
sys.path.insert(0, "/memsheet")
from memsheet.questions.ask import ask
def answer(text):
    return json.dumps(ask(json.loads(text)), allow_nan=False)
`);
const answer = python.globals.get("answer");
for (const question of JSON.parse(fs.readFileSync(0, "utf8"))) console.log(answer(JSON.stringify(question)));
"""
MODELS = (
    "llama-3.1-8b",
    "qwen3-8b",
    "mixtral-8x7b",
    "deepseek-v3",
    "gpt2",
    "qwen2.5-0.5b",
    "phi-3-mini",
    "llama-3.2-1b",
    "gpt-oss-20b",
)
CARDS = ("1xRTX4090", "8xA100-80GB", "8xH100-80GB", "2xL4", "64xH200", "1xT4")
FILES = (
    {"name": "ds_config.json", "text": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2}'},
    {"name": "serve.sh", "text": "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 8192"},
    {"name": "axolotl.yaml", "text": "base_model: Qwen/Qwen3-8B\nadapter: lora\nlora_r: 16\nsequence_len: 2048\nmicro_batch_size: 2\n"},
)  # fmt: skip


def drawn_questions(count: int) -> list[dict[str, Any]]:
    """Questions of every kind that a browser answers."""
    draw = random.Random(1)
    found = list[dict[str, Any]]()
    for number in range(count):
        job: dict[str, Any] = {
            "model": draw.choice(MODELS),
            "gpus": draw.choice(CARDS),
            "view": number % 3 == 0,
        }
        match number % 5:
            case 0 | 1:
                engine = draw.choice(("fsdp2", "deepspeed", "transformers", None))
                found.append(
                    {
                        "question": "train",
                        **job,
                        "engine": engine,
                        "seq_len": draw.choice((512, "2k", 4096)),
                        "microbatch": draw.choice((1, 2)),
                    }
                )
            case 2:
                engine = draw.choice(("vllm", "sglang", "transformers"))
                found.append(
                    {"question": "infer", **job, "engine": engine, "max_model_len": draw.choice((2048, 8192))}
                )
            case 3:
                found.append(
                    {
                        "question": "check",
                        "files": [draw.choice(FILES)],
                        "model_otherwise": job["model"],
                        "gpus": job["gpus"],
                    }
                )
            case _:
                found.append(
                    {
                        "question": "explain",
                        "term": draw.choice(("zero", "kv_cache", "saved_activations", "no such")),
                    }
                )
    return found


def test_a_browsers_python_gives_the_same_bytes(site: Path, tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    runner = tmp_path / "run.mjs"
    runner.write_text(RUNNER % {"pyodide": PYODIDE.resolve(), "site": site})
    questions = drawn_questions(200)
    done = subprocess.run(
        [node, str(runner)], input=json.dumps(questions), capture_output=True, text=True, check=False, timeout=1200
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == len(questions), done.stderr[-500:]
    for question, line in zip(questions, lines, strict=True):
        assert line == json.dumps(ask(question), allow_nan=False), question


def test_a_command_line_and_a_server_give_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    client = TestClient(make_app(), base_url="http://127.0.0.1")
    for asked in drawn_questions(200):
        if asked["question"] not in ("train", "infer"):
            continue
        found = ask(asked)
        given = {
            key: value for key, value in asked.items() if key not in ("question", "view", "model") and value
        }
        flags = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        code = main([asked["question"], asked["model"], *flags, "--json"])
        said = capsys.readouterr().out
        if "problems" in found["document"]:  # as a problem document over HTTP
            assert found["exit_code"] == code
            continue
        assert (code, json.loads(said)) == (found["exit_code"], found["document"]), asked
        body = {key: value for key, value in asked.items() if key not in ("view", "question")}
        answer = client.post(f"/api/v1/{asked['question']}", json=body)
        assert answer.content == json.dumps(found["document"], separators=(",", ":")).encode(), asked


def test_the_first_verdict_stands_before_python_is_there(alone: Any) -> None:
    alone.page.route("**/pyodide/**", lambda route: route.abort())
    alone.open()
    assert alone.verdict.startswith("FITS")
    alone.complaints.clear()  # that Python is not there


@pytest.mark.parametrize("state", [state for state in STATES if state != "first"])
def test_everybody_can_read_every_state_without_a_server(alone: Any, state: str) -> None:
    alone.open(STATES[state])
    assert violations(alone.page) == []


def test_a_change_is_applied_without_a_server(alone: Any) -> None:
    alone.open(SMALL)
    assert alone.verdict.startswith("DOES NOT FIT")
    alone.page.locator("#change button.apply").click()
    alone.settle()
    assert alone.verdict.startswith("FITS")
    alone.paste("vllm serve Qwen/Qwen3-8B --max-model-len 8192").fill("gpus", "1xH100-80GB")
    assert alone.verdict.startswith("FITS")


def test_what_a_browser_cannot_do_is_said(alone: Any) -> None:
    alone.open(SMALL).click("Best plans", role="tab").click("Find the best plans")
    assert "numpy" in alone.page.locator("#panel-plan").inner_text()


def test_what_a_first_visit_imports_is_compiled(site: Path) -> None:
    with zipfile.ZipFile(site / "memsheet.zip") as held:
        names = held.namelist()
        compiled = {name for name in names if name.endswith(".pyc")}
    assert any("/ask.cpython-" in name for name in compiled)
    assert len(compiled) < sum(name.endswith(".py") for name in names)


def test_the_bill_of_materials_names_every_foreign_part(site: Path) -> None:
    bill = json.loads((site / "materials.json").read_text())
    parts = {part["name"]: part for part in bill["components"]}
    assert {"Pyodide", "CPython", "pyyaml", "rich"} == set(parts)
    assert all(part["version"] and part["licenses"][0]["license"]["id"] for part in parts.values())
    named = {file["name"]: file["hashes"][0]["content"] for file in parts["Pyodide"]["components"]}
    served = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (site / "pyodide").iterdir()
    }
    assert named == served
    with zipfile.ZipFile(site / "memsheet.zip") as held:
        assert {name.split("/")[0] for name in held.namelist()} == {"memsheet", "yaml", "rich"}
