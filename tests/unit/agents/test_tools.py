"""What an agent asks: over the protocol, from the skill, and the twenty questions that it is judged by."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from memsheet.agents.tools import ABOUT, OUTPUT, answer_tool, tool_schema
from memsheet.cli import main
from memsheet.cli.skill import SKILL
from memsheet.questions.ask import ask

QUESTIONS: list[dict[str, Any]] = json.loads((SKILL.parent / "questions.json").read_text(encoding="utf-8"))
JOB = {"model": "llama-3.1-8b", "gpus": "8xA100-40GB", "seq_len": 4096}
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 23.65 GiB of which 1.06 GiB is free."
)
FILES = [{"name": "ds_config.json", "text": '{"zero_optimization": {"stage": 3}}'}]
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("train", JOB), ("infer", {"model": "qwen3-8b", "gpus": "1xL4", "engine": "vllm"}), ("check", {"files": FILES, **JOB}),
    ("plan", {"model": "llama-3.2-1b", "gpus": "1xA100-40GB", "engine": "transformers", "seq_len": 512, "global_batch": 8}),
    ("explain", {"term": "zero"}), ("diagnose", {"text": OUT_OF_MEMORY}), ("job", {"job": "trl-grpo", "model": "qwen3-0.6b", "gpus": "1xH100-80GB"}),
    ("solve", {"what": "seq-len", "engine": "transformers", "model": "qwen3-0.6b", "gpus": "1xL4"}), ("job", {"job": "grpo.json"}), ("train", {"model": "no-such", "zero": 9}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "arguments"), CALLS)
def test_a_tool_says_what_the_question_comes_to(name: str, arguments: dict[str, Any]) -> None:
    told = answer_tool(name, arguments)
    jsonschema.validate(arguments, tool_schema(name))
    jsonschema.validate(told.found, OUTPUT)
    assert told.words
    answer = ask({"question": name, **arguments})
    assert told.found["exit_code"] == answer["exit_code"]
    assert told.is_error == (answer["document"]["schema"] == "memsheet/error/1")
    assert len(json.dumps(told.found)) < 16_000


def test_the_verdict_and_its_cure_are_in_the_words() -> None:
    words = answer_tool("train", JOB).words
    assert words.startswith("DOES NOT FIT needs ")
    assert "recompute every layer" in words


def test_the_protocol_lists_and_calls_the_tools() -> None:
    def message(method: str, **more: Any) -> str:
        return json.dumps({"jsonrpc": "2.0", "method": method, **more})

    start = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    with subprocess.Popen(
        [sys.executable, "-m", "memsheet", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def asked(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
            print(message(method, id=number, params=params), file=server.stdin, flush=True)
            found: dict[str, Any] = json.loads(server.stdout.readline())
            assert found["id"] == number
            return found["result"]

        assert asked(1, "initialize", start)["serverInfo"]["name"] == "memsheet"
        print(message("notifications/initialized"), file=server.stdin, flush=True)
        tools = asked(2, "tools/list", {})["tools"]
        assert [tool["name"] for tool in tools] == list(ABOUT)
        assert all(tool["annotations"]["readOnlyHint"] for tool in tools)
        called = asked(3, "tools/call", {"name": "train", "arguments": JOB})
        assert called["structuredContent"] == json.loads(json.dumps(answer_tool("train", JOB).found))
        assert asked(4, "tools/call", {"name": "train", "arguments": {"zero": 9}})["isError"]
        assert asked(5, "tools/call", {"name": "no such", "arguments": {}})["isError"]
        server.stdin.close()
        assert server.wait(20) == 0


def test_every_command_of_the_skill_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds_config.json").write_text(FILES[0]["text"], encoding="utf-8")
    commands = re.findall(r"`memsheet ([^`…]+)`", SKILL.read_text(encoding="utf-8"))
    assert len(commands) > 8
    for command in commands:
        code = main(shlex.split(command))
        assert code in (0, 10, 11), (command, capsys.readouterr().err)
        capsys.readouterr()


@pytest.mark.parametrize("question", QUESTIONS, ids=[str(at) for at in range(len(QUESTIONS))])
def test_the_skills_questions_have_their_verdicts(
    question: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(question["words"])) == question["exit_code"], capsys.readouterr()


def test_the_skill_is_installed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill", "--install", str(tmp_path / "skills")]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert written.read_text(encoding="utf-8") == SKILL.read_text(encoding="utf-8")
    (tmp_path / "file").write_text("")
    assert main(["skill", "--install", str(tmp_path / "file")]) == 2
