"""The question by every door: Python, JSON, the command, a paste."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, TEXTS, TWELVE, Case, modern, traced

import memsheet
from laws import every
from memsheet.cli import main
from memsheet.diagnose.message import Cause
from memsheet.diagnose.redacted import redact_text
from memsheet.errors import InputError
from memsheet.questions.ask import ask
from memsheet.questions.diagnose import diagnose_named_texts
from memsheet.report.json.diagnosis import Diagnosis, diagnosis_document
from memsheet.report.schema.documents import document_model
from memsheet.report.screen.died.diagnosis import render_diagnosis
from memsheet.report.shared.look import Look


@every("case", TEXTS, ids=lambda case: case.name)
def test_a_document_is_what_its_schema_says(case: Case) -> None:
    document = diagnosis_document(diagnose_named_texts({"log": case.text}, None, {}))
    document_model(Diagnosis).model_validate_json(json.dumps(document))
    assert document["schema"] == "memsheet/diagnosis/1"
    assert document["verdict"] == case.verdict


@every("width", [80, 120])
@every("case", TEXTS, ids=lambda case: case.name)
def test_a_screen_begins_with_the_verdict_and_keeps_its_width(case: Case, width: int) -> None:
    screen = render_diagnosis(
        diagnose_named_texts({"log": case.text}, None, {}), Look(width=width, full=True)
    )
    assert screen.startswith(("DIED OF", "UNDECIDED", "NOTHING TO DIAGNOSE"))
    assert max(map(len, screen.splitlines())) <= width


def write_log(folder: Path, text: str) -> str:
    (folder / "train.log").write_text(text)
    return str(folder / "train.log")


@pytest.mark.parametrize(
    ("text", "code"), [(FULL_CARD, 0), ("epoch 3", 0), ("CUDA out of memory. Tried to allocate 2.00 GiB", 11), ("", 2), ("  \n", 2)]
)  # fmt: skip
def test_exit_codes(text: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", write_log(tmp_path, text)]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_is_not_there_and_a_broken_snapshot_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path / "none.log")]) == 2
    (tmp_path / "snapshot.pickle").write_bytes(b"\x80\x04\x95segments")
    assert main(["diagnose", str(tmp_path / "snapshot.pickle")]) == 2
    assert main(["diagnose"]) == 2
    assert "snapshot" in capsys.readouterr().err


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FULL_CARD.encode())))
    assert main(["diagnose", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "real_need"


def test_in_python_a_text_and_a_path(tmp_path: Path) -> None:
    assert memsheet.diagnose(FULL_CARD).cause is Cause.REAL_NEED
    assert memsheet.diagnose(Path(write_log(tmp_path, FULL_CARD))).cause is Cause.REAL_NEED
    with pytest.raises(InputError):
        memsheet.diagnose("")


def test_over_json_and_from_a_paste() -> None:
    read = ask({"question": "read", "text": FULL_CARD})["document"]
    assert read["kind"] == "message"
    answer = ask({**read["request"], "view": True})
    assert (answer["exit_code"], answer["document"]["verdict"]) == (0, "real_need")
    assert answer["view"]["screen"].startswith("DIED OF")
    assert ask({"question": "diagnose"})["exit_code"] == 2


def test_with_the_plan_its_sheet_names_the_tensor() -> None:
    """65,536 tokens of a vocabulary of 128,256 in fp32: 31.31 GiB."""
    text = traced("train", "cross_entropy") + modern(
        "31.31 GiB", "79.18 GiB", "20.00 GiB", "59.00 GiB", "58.00 GiB", "400.00 MiB"
    )
    asked = {"gpus": "1xH100-80GB", "seq_len": 65536, "fix": False}
    found = diagnose_named_texts({"log": text}, "llama-3.2-1b", asked)
    assert found.term is not None
    assert found.term.exact
    assert found.term.component == "temporaries"
    assert found.term.shape == "[65536, 128256] fp32"
    assert found.answer is not None
    document = diagnosis_document(found)
    assert document["sheet"]["schema"] == "memsheet/sheet/1"
    document_model(Diagnosis).model_validate_json(json.dumps(document))
    assert "Sheet" in render_diagnosis(found, Look(width=100))


def test_a_plan_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    assert (
        main(
            [
                "diagnose",
                write_log(tmp_path, FULL_CARD),
                "--model",
                "no-such-model-at-all",
                "--gpus",
                "1xH100-80GB",
            ]
        )
        == 2
    )


def test_nothing_of_a_text_is_obeyed_by_a_terminal() -> None:
    text = TWELVE[0].text.replace("torch.", "\x1b]0;title\x07\x1b[31mtorch.")
    assert "\x1b" not in render_diagnosis(
        diagnose_named_texts({"log\x1b[2J": text}, None, {}), Look(width=80)
    )


PERSON = "anna"
HOME = f"/home/{PERSON}"


def test_redacted_nothing_names_people_folders_or_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = f"File '{HOME}/secret-project/train.py'\nanna@node-7 10.0.0.12\n{FULL_CARD}"
    folder = tmp_path / "home-of-anna"
    folder.mkdir()
    assert main(["diagnose", write_log(folder, log), "--redact", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "anna" not in shown
    assert '"train.log"' in shown
    found = memsheet.diagnose(log, redact=True)
    assert found.cause is Cause.REAL_NEED
    assert (
        redact_text(f"at {HOME}/x/train.py:3 by anna@node-7 10.0.0.12", {"anna": "USER"})
        == "at train.py:3 by USER@HOST HOST"
    )
    assert (
        redact_text("8 x 1/2 GiB at model.layers.*.mlp/act_fn") == "8 x 1/2 GiB at model.layers.*.mlp/act_fn"
    )


HEALTHY = (
    "Load weight begin. avail mem=78.50 GB\nLoad weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=76.10 GB, mem usage=2.40 GB.\n"
    "KV Cache is allocated. #tokens: 100, K size: 28.00 GB, V size: 28.00 GB\nMemory pool end. avail mem=9.50 GB\n"
    "Capture cuda graph end. Time elapsed: 5.50 s. mem usage=1.20 GB. avail mem=8.30 GB.\n"
)  # fmt: skip


def test_a_run_that_lives_is_printed_beside_its_prediction() -> None:
    found = diagnose_named_texts(
        {"log": HEALTHY},
        "llama-3.2-1b",
        {"gpus": "1xH100-80GB", "max_model_len": 4096, "engine": "sglang", "fix": False},
    )
    assert not found.found
    assert {beside.fact for beside in found.printed} == {"weights_loaded_bytes", "kv_allocated_bytes"}
    assert "weights 2.40 GiB, predicted 2.30 GiB" in render_diagnosis(found, Look(width=120))
    assert diagnosis_document(found)["printed"][0]["fact"] == "weights_loaded_bytes"
    both = diagnose_named_texts({"log": HEALTHY + FULL_CARD}, None, {})
    assert any("left 8.30 GiB" in note for note in both.notes)


def test_a_message_that_names_nobody_has_the_processes_of_a_table_of_its_card() -> None:
    old = (
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 9.00 GiB already "
        "allocated; 1.00 GiB free; 9.50 GiB reserved in total by PyTorch)"
    )
    table = (
        "| NVIDIA-SMI 550.54 |\n| 30%   40C    P2    300W / 350W |  23000MiB /  24576MiB |  100% Default |\n"
        "|    0   N/A  N/A      1234      C   python    10100MiB |\n"
        "|    0   N/A  N/A      77      C   python    13000MiB |"
    )
    found = diagnose_named_texts({"log": f"{old}\n{table}"}, None, {})
    assert found.cause is Cause.OTHER_PROCESS
    assert "process 77" in found.because
    assert diagnose_named_texts({"log": old}, None, {}).cause is Cause.UNKNOWN


TABLE = (
    "| NVIDIA-SMI 550.54 |\n| 30%   40C    P2    300W / 350W |  24401MiB /  24576MiB |  100% Default |\n"
    "|    0   N/A  N/A      1822      C   /usr/bin/ollama    {}MiB |"
)


def test_a_table_names_whom_the_message_leaves_room_for() -> None:
    said = modern("10.00 GiB", "23.69 GiB", "3.02 GiB", "1.20 GiB", "800.00 MiB", "20.00 MiB")
    named = diagnose_named_texts({"log": f"{said}\n{TABLE.format(19880)}"}, None, {})
    assert "process 1822 (ollama) 19.41 GiB" in named.because
    later = diagnose_named_texts({"log": f"{said}\n{TABLE.format(22880)}"}, None, {})
    assert "1822" not in later.because


def test_a_context_that_finds_a_full_card_died_of_others() -> None:
    frame = '  File "torch/cuda/__init__.py", line 319, in _lazy_init\n    torch._C._cuda_init()\n'
    error = f"RuntimeError: CUDA error: out of memory\n{TABLE.format(24370).replace('ollama', 'python')}"
    assert diagnose_named_texts({"log": frame + error}, None, {}).cause is Cause.OTHER_PROCESS
    assert diagnose_named_texts({"log": error}, None, {}).cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    ("between", "used", "cause"),
    [
        ("(base) user@gpu3:~$ nvidia-smi", 24370, Cause.OTHER_PROCESS),
        ("$ nvidia-smi", 24370, Cause.OTHER_PROCESS),
        ("user@gpu3:~$ nvidia-smi", 12000, Cause.UNKNOWN),
        ("### nvidia-smi", 24370, Cause.UNKNOWN),
        ("while it runs:", 24370, Cause.UNKNOWN),
    ],
)
def test_who_fills_a_card_behind_a_shell_s_prompt_is_another(between: str, used: int, cause: Cause) -> None:
    table = TABLE.format(used).replace("ollama", "python")
    error = f"RuntimeError: CUDA error: out of memory\n{between}\n{table}"
    assert diagnose_named_texts({"log": error}, None, {}).cause is cause


def test_a_configuration_among_the_files_is_the_plan_that_ran(tmp_path: Path) -> None:
    config, log = tmp_path / "run.yml", tmp_path / "run.log"
    config.write_text(
        "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: a/b\n    type: "
        "alpaca\nsequence_len: 8192\nmicro_batch_size: 1\n"
        "gradient_accumulation_steps: 8\noptimizer: adamw_torch\nlearning_rate: 0.00001\nbf16: "
        "true\ngradient_checkpointing: false\n"
    )
    log.write_text(
        "axolotl train\n"
        + modern("3.91 GiB", "79.15 GiB", "1.10 GiB", "78.04 GiB", "76.90 GiB", "400.00 MiB")
    )
    found = memsheet.diagnose(log, config, gpus="1xA100-80GB")
    assert found.answer is not None
    assert found.term is not None
    assert found.term.shape == "[8192, 128256] fp32"
    changes = {cure.change: cure.where for cure in found.cures}
    assert changes["recompute every layer"] == "gradient_checkpointing: true"
    assert not any("recompute activations" in change for change in changes)
    config.write_text("nothing: known\n")
    assert memsheet.diagnose(log, config, gpus="1xA100-80GB").answer is None


@pytest.mark.parametrize(
    ("flags", "offered", "words"),
    [
        (["--recompute", "full"], "recompute", "it is on already"),
        (["--microbatch", "1"], "half the micro-batch or half the length", "one row is a micro-batch"),
    ],
)
def test_nothing_is_offered_that_the_plan_beside_has_already(
    flags: list[str], offered: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said as flags, as in Python, of what the text leaves open."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity "
        "of 23.64 GiB of which 3.10 GiB is free. Including non-PyTorch memory, this process has 20.52 GiB "
        "memory in use. Of the allocated memory 19.50 GiB is allocated by PyTorch, and 512.00 MiB is "
        "reserved by PyTorch but unallocated.\n"
    )
    (tmp_path / "train.log").write_text(text)
    job = ["--model", "llama-3.1-8b", "--gpus", "1xRTX4090", "--seq-len", "2048", "--lora-rank", "16"]
    told = []
    for more in ([], flags):
        assert main(["diagnose", str(tmp_path / "train.log"), *job, *more]) == 0
        told.append(" ".join(capsys.readouterr().out.split()))
    plain, beside = told
    assert offered in plain.partition("No use")[0]
    assert words not in plain
    assert offered not in beside.partition("No use")[0]
    assert words in beside


IN_PIECES = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 15.96 GiB. GPU 3 has a total capacity of 79.25 GiB of which "
    "9.81 GiB is free. Including non-PyTorch memory, this process has 69.43 GiB memory in use. Of the allocated memory 45.10 GiB "
    "is allocated by PyTorch, and 22.80 GiB is reserved by PyTorch but unallocated."
)  # fmt: skip


@pytest.mark.parametrize(("seq_len", "offered"), [(32768, True), (512, False)])
def test_a_plan_that_does_not_fit_offers_its_cures_beside_an_allocator_s(seq_len: int, offered: bool) -> None:
    found = memsheet.diagnose(
        IN_PIECES, model="Qwen/Qwen2.5-7B", gpus="8xH100", seq_len=seq_len, microbatch=1
    )
    assert found.cause is Cause.FRAGMENTATION
    assert any("make the plan fit" in cure.why for cure in found.cures) is offered
    assert any("does not fit the card" in note for note in found.notes) is offered
    assert all(cure.helps != "yes" for cure in found.cures)


@pytest.mark.parametrize(("microbatch", "beyond"), [(1, True), (16, False)])
def test_tensors_that_a_sheet_has_not_are_told_with_the_term(microbatch: int, beyond: bool) -> None:
    text = (
        traced("forward", "cross_entropy")
        + "\n"
        + modern("4.64 GiB", "23.52 GiB", "2.11 GiB", "21.40 GiB", "20.55 GiB", "406.12 MiB")
    )
    found = memsheet.diagnose(
        text, model="Qwen/Qwen3-4B", gpus="1xRTX4090", seq_len=2048, microbatch=microbatch, lora_rank=16
    )
    assert any(each.fact == "allocated_bytes" for each in found.printed) is beyond
    assert any("the run held" in note and "times" in note for note in found.notes) is beyond
    document_model(Diagnosis).model_validate_json(json.dumps(diagnosis_document(found)))


@pytest.mark.parametrize(
    ("function", "path"),
    [("from_pretrained", "transformers/modeling_utils.py"), ("_init_group", "torch/optim/adamw.py")],
)
def test_no_change_of_a_pass_is_offered_for_weights_or_states(function: str, path: str) -> None:
    """A request that lies beside no activations is made no smaller by fewer of them, though the plan's sheet
    needs that later on; what the plan has already is not offered.
    """
    message = modern("112.00 MiB", "23.64 GiB", "20.00 MiB", "23.60 GiB", "23.10 GiB", "20.00 MiB")
    found = memsheet.diagnose(
        traced(function, module=path) + message,
        model="qwen3-8b", gpus="1xRTX4090", lora_rank=16, quantize="nf4", seq_len=4096, microbatch=16,
    )  # fmt: skip
    offered = " ".join(cure.change for cure in found.cures if cure.helps != "no")
    assert not any(words in offered for words in ("recompute", "micro-batch", "fused loss", "adapters"))
    assert "weights in fewer bits" not in offered
    assert any("micro-batch" in note and "not the request that failed" in note for note in found.notes)
