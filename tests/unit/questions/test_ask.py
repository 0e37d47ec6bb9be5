"""One request in JSON, one answer in JSON: the command line's, and nothing of this machine's disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from laws import every
from memsheet.cli import main
from memsheet.questions.ask import QUESTIONS, ask

JOB = {"model": "llama-3.1-8b", "gpus": "8xA100-40GB", "seq_len": "4096"}
LINES = (
    ("train", {"model": "llama-tiny", "seq_len": "512"}),
    ("train", {"model": "llama-3.1-8b", "gpus": "8xA100-40GB", "engine": "deepspeed", "zero": "2", "seq_len": "2k"}),
    ("train", {"model": "mixtral-8x7b", "gpus": "64xH100-80GB", "engine": "megatron", "tp": "2", "pp": "4", "ep": "8", "seq_len": "4096"}),
    ("train", {"model": "qwen3-4b", "gpus": "1xRTX4090", "lora_rank": "16", "quantize": "nf4", "seq_len": "2048"}),
    ("infer", {"model": "llama-3.1-8b", "gpus": "1xL4", "engine": "vllm", "max_model_len": "8k"}),
    ("infer", {"model": "qwen3-32b", "gpus": "2xH100-80GB", "engine": "sglang", "tp": "2", "max_model_len": "8192"}),
    ("solve", {"what": "sequences", "model": "llama-3.1-8b", "gpus": "1xH100-80GB", "engine": "vllm", "max_model_len": "8192"}),
    ("explain", {"term": "zero"}),
)  # fmt: skip


def line_of(question: str, options: dict[str, str]) -> list[str]:
    given = [options[name] for name in ("what", "model", "term") if name in options]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value not in given]
    return [question, *given, *flags, "--json"]


@pytest.mark.parametrize(("question", "options"), LINES)
def test_the_document_is_that_of_the_command_line(
    question: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(line_of(question, options))
    found = ask({"question": question, **options})
    assert found["exit_code"] == code
    assert json.dumps(found["document"]) == capsys.readouterr().out.strip()


def test_a_view_has_the_words_of_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "llama-3.1-8b", "--gpus", "8xA100-40GB", "--seq-len", "4096"])
    screen = " ".join(capsys.readouterr().out.split())
    view = ask({"question": "train", **JOB, "view": True})["view"]
    assert screen.startswith(view["word"])
    for phrase in (*view["phrases"], *view["choices"], view["change"]["title"], view["change"]["after"]):
        assert phrase in screen
    for row in view["rows"]:
        assert row["name"] in screen
        assert row["size"] in screen


def test_a_change_that_is_applied_is_the_change_that_was_told() -> None:
    first = ask({"question": "train", **JOB, "view": True})
    fixed = ask({"question": "train", **JOB, **first["view"]["change"]["apply"], "view": True})
    assert (first["exit_code"], fixed["exit_code"]) == (10, 0)
    told = first["document"]["verdict"]["cheapest_fix"]["device_bytes"]
    assert fixed["document"]["verdict"]["device_bytes"] == told


@pytest.mark.parametrize("question", ["train", "infer", "check"])
@pytest.mark.parametrize("key", ["model", "plan", "cluster"])
def test_no_file_of_this_machine_is_there(question: str, key: str, tmp_path: Path) -> None:
    secret = tmp_path / "config.json"
    secret.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "secret": "swordfish"}))
    files = {"files": [{"name": "run.sh", "text": f"vllm serve {secret}"}]} if question == "check" else {}
    for name in (str(secret), str(tmp_path), f"file://{secret}", "/etc/passwd", "../../etc/passwd"):
        found = ask({"question": question, **JOB, **files, key: name, "view": True})
        text = json.dumps(found)
        assert "swordfish" not in text
        assert "root:" not in text
        assert found["exit_code"] == 2 or question == "check"


def test_a_script_does_not_read_beyond_its_folder(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("secret: swordfish\n")
    script = f"accelerate launch --config_file {tmp_path}/other.yaml train.py\nsource {tmp_path}/other.yaml\n"
    found = ask({"question": "check", "files": [{"name": "run.sh", "text": script}], "view": True})
    assert "swordfish" not in json.dumps(found)


@pytest.mark.parametrize(
    "name", ["../x.json", "/etc/x.json", ".bashrc", "", "a/b", "a\nb", "x" * 300, None, 3]
)
def test_a_file_has_a_plain_name(name: Any) -> None:
    found = ask({"question": "check", "files": [{"name": name, "text": "a: 1"}]})
    assert found["exit_code"] == 2
    assert found["document"]["problems"][0]["field"] == "files.name"


@every("question", [*QUESTIONS, "nope", None, 3, ["train"], {"a": 1}])
@every("more", [{}, {"model": 3}, {"model": {"model_type": "llama"}}, {"gpus": ["x"]}, {"files": "x"},
    {"plan": [1]}, {"text": "\x00"}, {"term": {}}, {"left": {}, "right": {}}, {"what": 3}, {"to": 3, "plan": {}},
    {"seq_len": -1, "model": "gpt2"}, {"fix": "maybe", "model": "gpt2"}, {"x": [1], "y": {}}, {"slack": 3, "model": "gpt2"}])  # fmt: skip
def test_whatever_is_asked_has_an_answer(question: Any, more: dict[str, Any]) -> None:
    found = ask({"question": question, **more})
    assert found["exit_code"] in (0, 2, 10, 11), found["document"]
    json.dumps(found, allow_nan=False)


PASTED = (
    ("llama-3.1-8b", "model", {"model": "llama-3.1-8b"}),
    ("https://huggingface.co/Qwen/Qwen3-8B/", "model", {"model": "https://huggingface.co/Qwen/Qwen3-8B"}),
    ("memsheet train gpt2 --gpus=1xT4 --seq-len 512 --no-compile --json", "command",
     {"question": "train", "model": "gpt2", "gpus": "1xT4", "seq_len": "512", "compile": False}),
    ("http://127.0.0.1:8630/#q=infer&model=gpt2&gpus=1xT4", "link", {"question": "infer", "model": "gpt2", "gpus": "1xT4"}),
    ('{"model_type": "llama", "hidden_size": 64}', "model", {"model": {"model_type": "llama", "hidden_size": 64}}),
    ('{"zero_optimization": {"stage": 3}}', "files", None),
    ("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2", "files", None),
    ("base_model: gpt2\nsequence_len: 512\n", "files", None),
    ('from transformers import TrainingArguments\nTrainingArguments("out", per_device_train_batch_size=1)\n', "files", None),
)  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "request_"), PASTED)
def test_what_is_pasted_is_the_question_that_it_is(text: str, kind: str, request_: Any) -> None:
    found = ask({"question": "read", "text": text})["document"]
    assert found["kind"] == kind
    if request_ is None:
        assert found["request"]["files"][0]["text"] == text
    else:
        assert found["request"] == request_


def test_a_file_without_a_model_has_the_one_that_is_offered() -> None:
    files = [
        {"name": "ds_config.json", "text": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'}
    ]
    asked = {"question": "check", "files": files, "gpus": "8xA100-80GB", "seq_len": "2048"}
    alone = ask(asked)["document"]
    beside = ask({**asked, "model_otherwise": "llama-3.1-8b"})["document"]
    assert alone["sheet"] is None
    assert beside["sheet"]["model"]["name"] == "llama-3.1-8b"


def test_a_table_has_the_figures_of_its_cells() -> None:
    table = ask(
        {"question": "grid", **JOB, "x": "seq_len", "y": "microbatch", "xs": [1024, 2048], "ys": [1, 2]}
    )["document"]
    for row, microbatch in zip(table["cells"], (1, 2), strict=True):
        for cell, length in zip(row, (1024, 2048), strict=True):
            one = ask(
                {"question": "train", **JOB, "seq_len": length, "microbatch": microbatch, "slack": "bounds"}
            )
            assert cell["device_bytes"] == one["document"]["verdict"]["device_bytes"]
            assert cell["result"] == one["document"]["verdict"]["result"]


def test_a_share_is_never_replayed_and_proposes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a step was played")

    monkeypatch.setattr("memsheet.formulas.replay.slack.items_with_replayed_slack", fail)
    for gpus in ("8xH100-80GB", "8xA100-40GB", "1xT4"):
        asked = {"question": "train", **JOB, "gpus": gpus, "slack": "share", "fix": False, "view": True}
        assert ask(asked)["exit_code"] in (0, 10, 11)


def test_offload_none_takes_back_what_a_file_says() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    text = json.dumps({"zero_optimization": zero, "train_micro_batch_size_per_gpu": 1})
    asked = {"question": "check", "files": [{"name": "ds_config.json", "text": text}], **JOB}
    kept, back = (
        ask({**asked, **more})["document"]["sheet"]["plan"]["offload"] for more in ({}, {"offload": "none"})
    )
    assert kept["optimizer"] == 1
    assert not any(back.values())


GRPO = {"model": "qwen3-0.6b", "gpus": "1xH100-80GB", "max_completion_length": 512, "vllm": "colocate"}


def test_a_job_of_several_models_is_asked_as_the_command_asks(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [
            *line_of("job", {"term": "trl-grpo"}),
            *(f"--{key.replace('_', '-')}={value}" for key, value in GRPO.items()),
        ]
    )
    found = ask({"question": "job", "job": "trl-grpo", **GRPO})
    assert found["exit_code"] == code
    assert json.dumps(found["document"]) == capsys.readouterr().out.strip()
    again = ask({"question": "job", "job": found["document"]["job"], "gpus": GRPO["gpus"]})
    assert again["document"]["verdict"] == found["document"]["verdict"]


def test_the_limit_of_a_job_is_the_last_that_fits() -> None:
    asked = {"question": "solve-job", "what": "gpu-memory-utilization", "job": "trl-grpo", **GRPO}
    told = ask({**asked, "view": True})
    largest = told["document"]["largest"]
    assert f"up to {largest:g}" in told["view"]["screen"]
    verdicts = [
        ask({"question": "job", "job": "trl-grpo", **GRPO, "vllm_gpu_memory_utilization": share})["exit_code"]
        for share in (largest, round(largest + 0.01, 2))
    ]
    assert verdicts[0] == 0
    assert verdicts[1] != 0
    assert told["document"]["sheet"]["verdict"]["result"] == "fits"


@pytest.mark.parametrize("what", ["gpu-memory-utilization", "row-tokens", "micro-batch-tokens"])
@pytest.mark.parametrize(
    "job", [{}, {"roles": {}}, {"roles": {"a": 3}, "phases": []}, {"roles": [], "phases": {}}]
)
def test_a_limit_of_what_is_no_job_is_refused(what: str, job: Any) -> None:
    answer = ask({"question": "solve-job", "what": what, "job": job, "gpus": "1xH100-80GB"})
    assert answer["exit_code"] == 2
    assert any(problem["field"].startswith("roles") for problem in answer["document"]["problems"])


@pytest.mark.parametrize("named", ["grpo.json", "/etc/passwd", 7, None])
def test_a_job_is_an_object_or_a_template_and_no_path(named: Any) -> None:
    answer = ask({"question": "job", "job": named, "gpus": "1xH100-80GB"})
    assert answer["exit_code"] == 2
    assert answer["document"]["problems"][0]["field"] == "job"
