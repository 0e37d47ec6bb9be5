"""The servers of llama-swap's configurations, each by its own command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.servers import servers_in_text
from memsheet.exchange.shared.serve_script import OTHERS
from memsheet.guard import parse_yaml
from memsheet.questions.recognised_files import PARSERS, recognise_files

SWAP = """macros:
  "ctx": 4096
  "latest": >
    bin/llama-server-ec9e0301 --port ${{PORT}}
  "args": "--ctx-size ${{ctx}}"
models:
  first:
    macros: {{"ctx": 16384}}
    cmd: |
      # the first
      ${{latest}} \\
      --model a/Qwen3-8B-Q4_K_M.gguf
      ${{args}} -ngl 99
  "second":
    cmd: vllm serve Qwen/Qwen3-8B --max-model-len ${{ctx}}
  voice:
    cmd: whisper-server --port 1
{}
"""


def test_each_model_is_a_server_with_macros_in_their_places() -> None:
    text = SWAP.format("")
    found = servers_in_text("a.yaml", text, parse_yaml)
    assert [(one.name, one.together) for one in found] == [("first", False), ("second", False)]
    first, second = (read_text("a.yaml", text, PARSERS, name) for name in ("first", "second"))
    assert (first.form.name, first.request["@model"], first.request["serving.max_model_len"]) == (
        "llama.cpp",
        "Qwen3-8B@Q4_K_M",
        16384,
    )
    assert (second.form.name, second.request["serving.max_model_len"]) == ("vllm", 4096)
    assert not first.unmodelled
    assert any("of voice no server is known" in one for one in first.assumed)


@pytest.mark.parametrize(
    ("routing", "together"),
    [
        ("groups: {a: {members: [first, second]}}", set()),
        ("groups: {a: {swap: false, members: [second]}}", {"second"}),
        ("groups: {a: {swap: true, exclusive: false, members: [first]}}", {"first", "second"}),
        ("routing: {router: {settings: {groups: {a: {persistent: true, members: [first]}}}}}", {"first", "second"}),
        ("routing: {router: {use: matrix}}", {"first", "second"}),
    ],
)  # fmt: skip
def test_who_may_run_beside_others_is_no_sure_sheet(routing: str, together: set[str]) -> None:
    text = SWAP.format(routing)
    found = servers_in_text("a.yaml", text, parse_yaml)
    assert {one.name for one in found if one.together} == together
    beside = {
        one.name for one in found if dict(read_text("a", text, PARSERS, one.name).unmodelled).get(OTHERS)
    }
    assert beside == together


def test_commands_that_start_scripts_alone_are_told_so() -> None:
    with pytest.raises(InputError, match="starts no server that is known, for a"):
        read_text("a.yaml", "models:\n  a: {cmd: bash ./serve.sh}\n", PARSERS)


SAID = {
    "ls-aider-qwq-coder.yaml": {
        "qwen-coder-32B": {"@model": "Qwen2.5-Coder-32B-Instruct@Q4_K_M", "serving.max_model_len": 16000, "serving.k_dtype": "gguf:Q8_0", "serving.gpu_layers": 99},
        "QwQ": {"@model": "Qwen/QwQ-32B@Q4_K_M", "serving.max_model_len": 32000, "serving.kv_dtype": "gguf:Q8_0"},
    },
    "ls-docker-config.yaml": {
        "qwen2.5": {"@model": "bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"}, "smollm2": {"@model": "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M"},
    },
    "ls-unified-config.yaml": {"llama": {"@model": "bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"}},
    "ls-config-example.yaml": {
        "gpt-oss-120b": {"@model": "path/to/gpt-oss-120B.gguf", "serving.max_model_len": 16384},
        "docker-llama": {"@model": "Qwen2.5-Coder-0.5B-Instruct@Q4_K_M"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_read_out_of_the_projects_own_examples(name: str) -> None:
    text = (FOLDER / name).read_text()
    names = [one.name for one in servers_in_text(name, text, parse_yaml)]
    assert names == list(SAID[name])
    for server, wanted in SAID[name].items():
        (read,) = recognise_files({name: text}, (), server)[0].values()
        assert {key: read.request.get(key) for key in wanted} == wanted
        assert not read.unknown


def test_several_servers_are_a_sheet_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text((FOLDER / "ls-aider-qwq-coder.yaml").read_text())
    given = ["check", str(tmp_path / "a.yaml"), "--gpus", "1x24GB"]
    assert main(given) == 11
    out = capsys.readouterr().out
    assert out.count("== ") == 2
    assert "a.yaml: QwQ\n" in out
    assert main([*given, "--json"]) == 11
    told = json.loads(capsys.readouterr().out)
    assert [one["outcome"] for one in told["launches"]] == ["uncertain", "uncertain"]


def test_more_servers_than_are_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = "".join(f"  m{n}:\n    cmd: llama-server -m Qwen3-8B-Q4_K_M.gguf -c 4096\n" for n in range(10))
    (tmp_path / "a.yaml").write_text(f"models:\n{models}")
    assert main(["check", str(tmp_path / "a.yaml"), "--gpus", "1x24GB"]) == 0
    assert "2 further servers are not read: m8, m9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("./server -m models/llama-2-7b.Q4_0.gguf -c 4096", "llama-2-7b@Q4_0"),
        ("bin/llama-server-ec9e0301 -m a-Q4_0.gguf", "a@Q4_0"),
        ("llama-server.exe -m a-Q4_0.gguf", "a@Q4_0"),
        ("./main -m a-Q4_0.gguf -n 8", "a@Q4_0"),
        ("llama-server -m google_gemma-3-12b-it-Q4_K_M.gguf", "google/gemma-3-12b-it@Q4_K_M"),
    ],
)
def test_programs_by_their_other_names(line: str, model: str) -> None:
    assert read_text("a.sh", line, PARSERS).request["@model"] == model


def test_a_program_of_the_same_name_with_another_model_is_none() -> None:
    with pytest.raises(InputError, match="not recognised"):
        read_text("a.sh", "./server -m prod --port 1\npython main -m a.b\n", PARSERS)


def test_a_draft_leaves_what_does_not_fit_without_it(tmp_path: Path) -> None:
    line = "llama-server -hf bartowski/Meta-Llama-3.1-70B-Instruct-GGUF:Q4_K_M -ngl 99 -c 4096"
    (tmp_path / "a.sh").write_text(f"{line} -md a-Q8_0.gguf -ngld 9\n")
    assert main(["check", str(tmp_path / "a.sh"), "--gpus", "1xRTX4090"]) == 10
