"""The trace: real code on fake tensors, in a child process. Small models; the real sizes are in
benchmarks/agreement.py.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import memsheet
import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.questions.traced import Options, trace_file, trace_step, trace_with_timelines
from memsheet.sheet import Component, Instant
from memsheet.timeline import events_document, sheet_of, timeline_from
from memsheet.trace.parent import trace_in_child
from memsheet.trace.usual_errors import explain_traced_error

pytestmark = pytest.mark.usefixtures("warm_children")
HERE = Path(__file__).parents[2]
EXAMPLE = HERE.parent / "examples" / "custom_step.py"
MIB = 2**20


@pytest.fixture(scope="module")
def cases():
    return json.loads(warm_children.printed(HERE / "tracing_cases.py"))


@pytest.mark.slow
def test_a_layer_stands_for_its_like_event_by_event(cases):
    assert all(case["folds"] for case in cases.values())
    assert {name: case["same"] for name, case in cases.items()} == dict.fromkeys(cases, True)


def test_items_add_up_to_the_peak_of_every_instant(cases):
    assert all(case["sums"] for case in cases.values())


def test_formulas_and_trace_agree_at_the_peak(cases):
    """Within half a percent; buffers of a few bytes are the formulas' known gap."""
    for name, case in cases.items():
        if "refused" not in case["predicted"]:
            traced, predicted = max(case["peaks"].values()), max(case["predicted"].values())
            assert abs(predicted / traced - 1) < 0.005, name


def test_a_step_of_ones_own_is_traced_to_the_byte():
    """The example: two matrices of 16 MiB, their moments, their gradients, and the activations that its
    docstring works out.
    """
    answer, (timeline,) = trace_file(f"{EXAMPLE}:build", Options())
    sheet = sheet_of(timeline)
    assert sheet.of(Component.PARAMETERS).value == 32 * MIB
    steps = 2 * 4  # one step count in fp32 for each matrix, on the device because the optimizer is fused
    assert sheet.of(Component.OPTIMIZER_STATES).value == 64 * MIB + steps
    assert sheet.of(Component.INPUTS).value == 4 * MIB
    assert sheet.of(Component.GRADIENTS, instant=Instant.OPTIMIZER_STEP).value == 32 * MIB
    assert (
        sheet.of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD).value == 8 * MIB
    )  # the ReLU's output
    assert answer.trace["peak"]["line"].startswith("custom_step.py:")


NOTEBOOK = """
import json, torch
from memsheet import trace_step
from memsheet.sheet import Instant

def build():
    weight = torch.zeros(1000, 500, requires_grad=True)
    def step():
        (weight.square()).sum().backward()
        weight.grad = None
    return step

answer = trace_step(build)
print(json.dumps([answer.sheets[0].at(Instant.LOAD).value, answer.sheets[0].at(Instant.FORWARD).value, answer.parameters]))
"""


def notebook(before=""):
    """A fresh interpreter, as a notebook's kernel is: a trace there is a fork of it."""
    pytest.importorskip("torch")
    return subprocess.run(
        [sys.executable, "-c", NOTEBOOK.replace("BEFORE", before)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_step_from_a_notebook():
    load, forward, parameters = json.loads(notebook().stdout)
    matrix = 4 * 500_000
    # weight, its square is let go by the sum; backward: 2 * weight, then times the incoming gradient
    assert load == matrix
    assert forward >= 2 * matrix
    assert parameters == 0


def test_a_notebook_that_ran_a_backward_pass_is_told_what_to_do():
    error = RuntimeError(
        "Unable to handle autograd's threading in combination with fork-based multiprocessing. See a page."
    )
    assert "fresh interpreter" in explain_traced_error(error, "step.py")["hint"]
    assert "fresh interpreter" not in explain_traced_error(RuntimeError("other"), "step.py")["hint"]


def test_values_are_refused_with_the_persons_own_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\ndef build():\n    def step():\n        return torch.zeros(3).sum().item()\n    "
        "return step\n"
    )
    with pytest.raises(InputError, match=r"mine\.py:4"):
        trace_file(f"{file}:build", Options())


COPIES = """
import copy, torch
def step(layers):
    model, given = torch.nn.Sequential(*layers), torch.zeros(64, 256)
    optimizer = torch.optim.SGD(model.parameters())
    def run():
        model(given).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, run
def copied():
    one = torch.nn.Linear(256, 256)
    return step([one, *(copy.deepcopy(one) for _ in range(2))])
def made():
    return step([torch.nn.Linear(256, 256) for _ in range(3)])
"""


def test_layers_that_are_deep_copies_take_what_others_do(tmp_path):
    """A copy's views share its memory, as those of what was made."""
    file = tmp_path / "mine.py"
    file.write_text(COPIES)
    played = [trace_file(f"{file}:{name}", Options())[1] for name in ("copied", "made")]
    copied, made = (sheet_of(timelines[0]) for timelines in played)
    for when in (Instant.LOAD, Instant.FORWARD, Instant.BACKWARD, Instant.OPTIMIZER_STEP):
        assert copied.at(when).value == made.at(when).value


def test_a_function_that_is_not_there(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def other():\n    return None\n")
    with pytest.raises(InputError, match="no function build"):
        trace_file(f"{file}:build", Options())


def test_the_command_prints_a_traced_sheet(capsys, tmp_path):
    events, picture = tmp_path / "events.json", tmp_path / "step.svg"
    asked = [
        "trace",
        "llama-tiny",
        "--seq-len",
        "64",
        "--precision",
        "bf16-pure",
        "--json",
        "--events",
        str(events),
    ]
    assert main([*asked, "--picture", str(picture)]) == 0
    document = json.loads(capsys.readouterr().out)
    timeline = timeline_from(json.loads(events.read_text()))
    assert document["witness"] == "traced"
    assert document["ranks"][0]["allocated_bytes"] == sheet_of(timeline).allocated.value
    assert events_document(timeline) == json.loads(events.read_text())
    assert picture.read_text().startswith("<?xml")


def test_time_is_limited():
    with pytest.raises(InputError, match="took more than"):
        trace_in_child({"function": f"{EXAMPLE}:build", "device": "cuda", "scratch": False}, time_s=0.01)


@pytest.mark.parametrize("card", ["RTX3090", "H100-80GB"])
def test_workspaces_are_as_large_as_the_card_has_them(card):
    asked = {"gpus": f"1x{card}", "seq_len": 128}
    told, seen = (ask("llama-tiny", **asked).sheets[0] for ask in (memsheet.train, memsheet.trace))
    held = [
        sum(item.at[Instant.BACKWARD].value for item in sheet.items if item.component is Component.WORKSPACES)
        for sheet in (told, seen)
    ]
    assert held[0] == held[1] > 0


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="none of the 1 ranks"):
        trace_with_timelines("llama-tiny", Options(rank=3), seq_len=64)


@pytest.mark.parametrize(
    ("flags", "field"),
    [(["--vocab-multiple", "3000"], "vocab_multiple"), (["--engine", "deepspeed"], "engine")],
)
def test_what_a_trace_would_not_do_is_never_ignored(flags, field, capsys):
    assert main(["trace", "llama-tiny", "--seq-len", "64", *flags]) == 2
    assert f"{field} = {flags[1]}" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--rank", "1"], ["--all-stages"], ["--cache", "static"]])
def test_flags_that_a_step_of_ones_own_has_no_use_for_are_refused(flags, capsys):
    assert main(["trace", f"{EXAMPLE}:build", *flags]) == 2
    assert "no meaning for a step of one's own" in capsys.readouterr().err


def test_a_file_without_its_function_is_asked_for_one(capsys):
    assert main(["trace", str(EXAMPLE)]) == 2
    assert "custom_step.py:FUNCTION" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--events", "--snapshot", "--picture"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_run(flag, capsys, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memsheet.cli.trace.ask", lambda *_, **__: pytest.fail("it was run"))
        assert (
            main(["trace", "llama-tiny", "--seq-len", "64", flag, str(tmp_path / "missing" / "step.svg")])
            == 2
        )
    assert "a folder that does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_step_leaves_behind_is_not_waited_for(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import subprocess, sys, threading, time, torch\n"
        "def build():\n"
        "    threading.Thread(target=time.sleep, args=(50,)).start()\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(50)'])\n"
        "    return lambda: torch.zeros(1000)\n"
    )
    trace_file(f"{file}:build", Options(time_s=40))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise SystemExit(3)", "ends the program"),
        pytest.param("import no_such_package", "needs a package", marks=pytest.mark.slow),
        pytest.param("torch.zeros(2) + torch.zeros(2, device='cpu')", "two devices", marks=pytest.mark.slow),
    ],
)
def test_usual_mistakes_have_their_cure(line, reason, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"import torch\ndef build():\n    {line}\n")
    with pytest.raises(InputError, match=rf"mine\.py:3: .*{reason}"):
        trace_file(f"{file}:build", Options())


def test_a_copy_of_a_notebook_ends_whatever_its_function_raises():
    def build():
        raise SystemExit(0)

    with pytest.raises(InputError, match="ends the program"):
        trace_step(build)


def test_memory_that_is_not_enough_is_said_to_be():
    with pytest.raises(InputError, match="--memory-limit gives it more"):
        trace_in_child(
            {"function": f"{EXAMPLE}:build", "device": "cuda", "scratch": False}, memory_bytes=100 * MIB
        )


def test_a_model_that_reads_its_own_masks_is_traced(capsys, tmp_path):
    config = {
        "model_type": "longformer", "attention_window": 64, "num_hidden_layers": 2, "vocab_size": 500, "hidden_size": 64,
        "num_attention_heads": 4, "intermediate_size": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["trace", str(tmp_path), "--seq-len", "64", "--attention", "eager"]) == 0
    assert "TRACED" in capsys.readouterr().out


def test_a_library_that_reads_weights_is_said_to():
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memsheet.trace.usual_errors import explain_traced_error

    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.empty(4))
        weight.grad = torch.empty(4)
        with pytest.raises(RuntimeError) as error:
            torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    trace = error.value.__traceback__.tb_next
    said = explain_traced_error(error.value.with_traceback(trace), "a_model")
    assert "needs the value of a tensor" in said["reason"]
    assert "own code does so" in said["hint"]


@pytest.mark.slow
def test_what_a_model_takes_besides_text_is_said_to_be_left_out(tmp_path):
    """A vision tower is held and not run; an encoder reads as much as its decoder."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 100,
        "head_dim": 8,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    seeing = {
        "model_type": "gemma3",
        "text_config": {**text, "num_attention_heads": 4, "num_key_value_heads": 1},
        "vision_config": vision,
    }
    translating = {
        "model_type": "t5",
        "d_model": 32,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "d_kv": 8,
        "vocab_size": 100,
    }
    for config, said in ((seeing, "vision tower is not run"), (translating, "as many for the encoder")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        answer, _ = trace_with_timelines(str(tmp_path), Options(), seq_len=64, precision="bf16-pure")
        assert any(said in line for line in answer.assumed)
        assert "assumed" not in (answer.trace or {})


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="the package is there")
def test_a_kernel_of_a_package_that_is_missing_is_refused_with_what_to_take_instead(capsys):
    assert (
        main(["trace", "llama-tiny", "--seq-len", "64", "--precision", "bf16-pure", "--attention", "flash"])
        == 2
    )
    said = capsys.readouterr().err
    assert "attention = flash" in said
    assert "sdpa" in said


def test_adapters_cut_over_tensor_parallel_ranks_are_refused(capsys):
    assert (
        main(
            [
                "trace",
                "llama-tiny",
                "--seq-len",
                "64",
                "--engine",
                "fsdp2",
                "--dp-shard",
                "2",
                "--tp",
                "2",
                "--lora-rank",
                "4",
            ]
        )
        == 2
    )
    assert "mesh.tp = 2 (--tp): cuts no adapters" in capsys.readouterr().err
