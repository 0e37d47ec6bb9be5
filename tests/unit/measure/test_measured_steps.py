"""Many steps of many lengths, text as tokens, steps of one's own, and where memory ran out: what measuring
tells besides a sheet.
"""

import json
import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

import memsheet
from memsheet.allocator.replay import replay_timeline
from memsheet.allocator.settings import Settings
from memsheet.allocator.steps import replay_steps
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.measure import requests
from memsheet.measure.categories import profiler_category, profiler_category_bytes
from memsheet.measure.custom import measure_custom
from memsheet.measure.died import out_of_memory_record, request_bytes, stop_of
from memsheet.measure.environment import runtime_environment
from memsheet.measure.lengths import read_peak_counters
from memsheet.plan.words import request_from
from memsheet.questions import measured as measuring
from memsheet.run.data import microbatch_stream, random_sequence_lengths, read_text
from memsheet.run.model import build_config
from memsheet.sheet import Component, Instant
from memsheet.timeline import Storage, Timeline, timeline_from
from memsheet.trace.job import How, recording_context
from memsheet.trace.parent import environment_of

pytestmark = pytest.mark.usefixtures("warm_children")
MIB = 2**20
TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 512,
}  # fmt: skip


def plan_of(**short):
    from memsheet.resolve import resolve_request

    return resolve_request({**request_from(short), "task": "train"}, None, real=True).plan


# ---- lengths and text --------------------------------------------------------------------------------------


def test_lengths_vary_within_their_bounds_and_are_the_same_every_time():
    found = random_sequence_lengths(512, 200)
    assert found == random_sequence_lengths(512, 200)
    assert random_sequence_lengths(512, 30) == found[:30]
    assert min(found) >= 128
    assert max(found) <= 512
    assert all(length % 8 == 0 for length in found)
    assert len(set(found)) > 20
    assert set(random_sequence_lengths(7, 50)) <= set(range(1, 8))


def test_text_becomes_tokens_batch_after_batch_and_begins_again(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(range(100)))
    plan = plan_of(seq_len=30, microbatch=2, precision="fp32")
    config = build_config({**TINY, "vocab_size": 64}, plan)
    made = microbatch_stream(config, plan, "cpu", text=read_text(str(file)))
    first, second = next(made)["input_ids"], next(made)
    assert first.tolist() == [[n % 64 for n in range(30)], [n % 64 for n in range(30, 60)]]
    assert second["input_ids"].flatten().tolist() == [n % 100 % 64 for n in range(60, 120)]
    assert second["labels"].tolist() == second["input_ids"].tolist()
    varied = list(microbatch_stream(config, plan, "cpu", text=b"ab", varied=[8, 16]))
    assert [batch["input_ids"].shape[1] for batch in varied] == [8, 16]


def test_text_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    for name in (str(tmp_path), str(tmp_path / "none"), str(tmp_path / "empty")):
        with pytest.raises(InputError, match="data"):
            read_text(name)


# ---- the allocator over steps ------------------------------------------------------------------------------


def steps_of(sizes):
    """A timeline of steps that each hold all their sizes at once, and the events at which they begin."""
    storages, events, starts = [], [], []
    for step in sizes:
        starts.append(len(events))
        numbers = range(len(storages), len(storages) + len(step))
        storages += [Storage(size, Component.TEMPORARIES, "x", "op") for size in step]
        events += [*numbers, *(~number for number in numbers)]
    return Timeline(storages=tuple(storages), events=tuple(events), marks=()), starts


def test_steps_together_are_the_whole_replay():
    draw = random.Random(1)
    made, starts = steps_of([[draw.randint(1, 40 * MIB) for _ in range(12)] for _ in range(8)])
    for settings in (Settings(), Settings(expandable_segments=True), Settings(max_split_size_bytes=20 * MIB)):
        found, whole = replay_steps(made, starts, settings), replay_timeline(made, settings)
        assert len(found) == 8
        assert max(step.reserved_bytes for step in found) == whole.reserved_peak_bytes
        assert max(step.allocated_bytes for step in found) == whole.allocated_peak_bytes
        assert [step.reserved_bytes for step in found] == sorted(
            step.reserved_bytes for step in found
        )  # without an end nothing goes back


def test_an_emptied_cache_gives_each_step_its_own():
    made, starts = steps_of([[50 * MIB], [10 * MIB], [30 * MIB]])
    kept, emptied = (replay_steps(made, starts, Settings(), empty_cache=empty) for empty in (False, True))
    assert [step.reserved_bytes // MIB for step in kept] == [50, 50, 50]
    assert [step.reserved_bytes // MIB for step in emptied] == [50, 10, 30]
    assert [step.idle_bytes // MIB for step in kept] == [0, 40, 20]


class Cuda:
    """Counters as torch.cuda.memory_stats has them."""

    def __init__(self):
        self.resets = 0

    def memory_stats(self):
        return {
            "allocated_bytes.all.peak": 5,
            "reserved_bytes.all.peak": 9,
            "inactive_split_bytes.all.peak": 2,
        }

    def reset_peak_memory_stats(self):
        self.resets += 1


def test_a_gpu_s_own_counters_are_read_and_set_back():
    cuda = Cuda()
    assert read_peak_counters(cuda) == {"allocated_bytes": 5, "reserved_bytes": 9, "inactive_bytes": 2}
    assert cuda.resets == 1


@pytest.mark.slow
def test_varied_lengths_on_text_are_measured_and_shown(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "text.txt").write_text("to be or not to be " * 50)
    command = [
        "measure",
        str(tmp_path / "config.json"),
        "--seq-len",
        "64",
        "--microbatch",
        "2",
        "--vary-length",
        "--steps",
        "4",
    ]
    given = [
        *command,
        "--data",
        str(tmp_path / "text.txt"),
        "--record",
        str(tmp_path / "r.json.gz"),
        "--events",
        str(tmp_path / "e.json"),
    ]
    assert main(given) == 0
    shown = capsys.readouterr()
    assert "worst step" in shown.out
    assert "max_split_size_mb:21" in shown.out
    assert shown.err.count("\n") == 1
    from memsheet.readers.record import read_record

    record = read_record(tmp_path / "r.json.gz")
    found = record.sheet["trace"]["measured"]
    over = found["over_steps"]
    assert over["lengths"] == random_sequence_lengths(64, 4)
    assert over["simulated"]
    assert [len(kind["reserved_bytes"]) for kind in over["settings"]] == [4] * 4
    for kind in over["settings"]:
        for allocated, reserved, idle in zip(
            kind["allocated_bytes"], kind["reserved_bytes"], kind["idle_bytes"], strict=True
        ):
            assert 0 < allocated <= reserved
            assert 0 <= idle <= reserved - allocated + 2 * MIB or idle <= reserved
    assert found["environment"]["torch"] == torch.__version__
    assert record.asked["config"] == TINY
    assert record.files == {"events": "e.json"}
    assert timeline_from(json.loads((tmp_path / "e.json").read_text())).events


# ---- where memory runs out ---------------------------------------------------------------------------------


def test_a_request_that_fails_is_an_answer_with_what_was_there():
    with recording_context(How(device="cpu", fake=False, scratch=False)) as recorder:
        recorder.where = lambda: "model.layers.3.mlp"
        weight = torch.ones(1000)
        recorder.claim(weight, Component.PARAMETERS, "model.layers.3.mlp")
        recorder.mark(Instant.FORWARD)
        recorder.where = lambda: "model.layers.2.mlp"
        kept = torch.ones(500)
        recorder.where = lambda: "model.layers.3.mlp"
        with pytest.raises(RuntimeError) as error:
            torch.empty(2**50)
        stop = stop_of(error.value)
        assert stop is not None
        found = out_of_memory_record(stop, error.value)
    del weight, kept
    told = found["facts"]["died"]
    assert (told["instant"], told["step"], told["op"], told["path"]) == (
        "forward",
        1,
        "aten.empty",
        "model.layers.*.mlp",
    )
    assert told["request_bytes"] == 4 * 2**50
    assert told["by"] == {"parameters": 4000, "saved_activations": 2000}
    assert told["resident_bytes"] == 6000
    assert sum(storage.bytes for storage in timeline_from(found["events"]).storages) == 6000


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has", 5 * 2**29), ("Tried to allocate 20.00 MiB (GPU 0", 20 * MIB),
        ("can't allocate memory: you tried to allocate 123 bytes. Error code 12", 123), ("could not create a primitive", None),
    ],
)  # fmt: skip
def test_requests_are_read_from_messages(message, size):
    assert request_bytes(RuntimeError(message)) == size


def test_other_errors_are_not_taken_for_it():
    with (
        recording_context(How(device="cpu", fake=False, scratch=False)),
        pytest.raises(RuntimeError) as error,
    ):
        torch.ones(3) @ torch.ones(4)
    assert stop_of(error.value) is None
    assert stop_of(RuntimeError("out of memory")) is None  # nobody saw where


@pytest.mark.slow
def test_a_job_that_dies_exits_with_ten(capsys):
    command = [
        "measure",
        "llama-tiny",
        "--seq-len",
        "2048",
        "--microbatch",
        "8",
        "--attention",
        "eager",
        "--memory-limit",
        "900MiB",
    ]
    assert main(command) == 10
    shown = capsys.readouterr().out
    assert shown.startswith("OUT OF MEMORY")
    assert "of step 1" in shown
    assert main([*command, "--json"]) == 10
    found = json.loads(capsys.readouterr().out)
    told = found["trace"]["died"]
    assert told["by"]["parameters"] == 4 * 3_426_560
    assert told["request_bytes"] > 0
    assert found["verdict"]["result"] == "does_not_fit"
    assert found["ranks"][0]["allocated_bytes"] == told["resident_bytes"] == sum(told["by"].values())


# ---- a step of one's own -----------------------------------------------------------------------------------


def build():
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(module.parameters())
    inputs = torch.randn(32, 64)

    def step():
        module(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return module, optimizer, step


def test_a_step_of_one_s_own_is_measured_on_real_tensors():
    answer = memsheet.measure_step(build, steps=2)
    (sheet,) = answer.sheets
    weights = 4 * sum(p.numel() for p in build()[0].parameters())
    assert sheet.of(Component.PARAMETERS, instant=Instant.FORWARD).value == weights
    assert (
        sheet.of(Component.OPTIMIZER_STATES, instant=Instant.FORWARD).value == 2 * weights + 4 * 4
    )  # two moments, four counts of steps
    assert sheet.of(Component.GRADIENTS, instant=Instant.OPTIMIZER_STEP).value == weights
    measured = answer.trace["measured"]
    assert sheet.allocated.value == max(measured["instants"].values())
    assert measured["steps"] == 2
    assert (
        abs(sum(item.largest.value for item in sheet.items if item.component is Component.UNEXPLAINED))
        < 0.01 * sheet.allocated.value
    )


OWN = """
import torch
def build():
    module = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(module.parameters())
    inputs = torch.randn(ROWS, 64)
    def step():
        module(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer, step
"""


def test_a_step_in_a_file_is_measured_in_a_child(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(OWN.replace("ROWS", "32"))
    assert main(["measure", f"{file}:build", "--steps", "2", "--record", str(tmp_path / "r.json")]) == 0
    assert f"measure{file}:build" in "".join(capsys.readouterr().out.split())  # a long path wraps
    from memsheet.readers.record import read_record

    found = read_record(tmp_path / "r.json")
    assert found.sheet["trace"]["measured"]["steps"] == 2
    assert found.sheet["plan"] is None
    file.write_text(OWN.replace("ROWS", str(2**30)))
    assert main(["measure", f"{file}:build", "--memory-limit", "1GiB"]) == 10
    assert f"asked for {64 * 4:.0f}" in capsys.readouterr().out
    assert main(["measure", f"{file}:build", "--seq-len", "4"]) == 2
    assert main(["measure", f"{file}:build", "--vary-length"]) == 2
    assert main(["measure", str(file)]) == 2


def test_what_a_step_raises_is_raised():
    def broken():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        memsheet.measure_step(lambda: broken)
    with pytest.raises(InputError, match="device"):
        memsheet.measure_step(build, device="tpu")
    with pytest.raises(InputError, match="steps"):
        memsheet.measure_step(build, steps=0)


# ---- names and places --------------------------------------------------------------------------------------


def test_every_component_has_the_framework_s_name_at_each_instant():
    assert profiler_category(Component.TEMPORARIES, Instant.BACKWARD) == "AUTOGRAD_DETAIL"
    assert profiler_category(Component.TEMPORARIES, Instant.FORWARD) == "ACTIVATION"
    assert profiler_category(Component.TEMPORARIES, Instant.OPTIMIZER_STEP) == "unknown"
    assert profiler_category(Component.KV_CACHE, Instant.DECODE) == "unknown"
    names = {profiler_category(component, instant) for component in Component for instant in Instant}
    from torch.profiler._memory_profiler import Category

    assert names - {"unknown"} == {kind.name for kind in Category}


def test_names_add_up_to_what_is_allocated():
    (sheet,) = memsheet.measure_step(build, steps=1).sheets
    for instant, row in profiler_category_bytes(sheet).items():
        assert sum(row.values()) == sheet.at(Instant(instant)).value


def test_the_environment_names_versions_and_settings(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    found = runtime_environment("cpu")
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["allocator"] == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert found["device_name"]
    assert found["threads"] >= 1
    assert json.loads(json.dumps(found)) == found


def test_a_rank_is_told_as_a_child_tells_it():
    found = measure_custom(build, "cpu", 1)
    assert set(found) == {"rank", "stage", "events", "facts"}


def test_generation_is_measured(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    command = [
        "measure",
        str(tmp_path / "config.json"),
        "--max-model-len",
        "64",
        "--prompt-tokens",
        "32",
        "--steps",
        "2",
        "--json",
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    measured = found["trace"]["measured"]
    assert set(measured["instants"]) == {"load", "prefill", "decode"} == set(found["ranks"][0]["instants"])
    assert found["ranks"][0]["instants"] == measured["instants"]
    assert measured["prefill_s"] > 0
    cache = [item for item in found["ranks"][0]["items"] if item["component"] == "kv_cache"]
    assert (
        sum(item["at"]["decode"] for item in cache) == 2 * 2 * 2 * 16 * 64 * 2
    )  # keys and values, layers, heads, size, tokens, bf16


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (["--seq-len", "64", "--snapshot", "x.json"], "snapshot"), (["--max-model-len", "64", "--vary-length"], "vary_length"),
        (["--seq-len", "64", "--record", "/none/x.json"], "record"), (["--seq-len", "64", "--data", "/none"], "data"),
    ],
)  # fmt: skip
def test_what_is_not_measured_is_refused(capsys, more, field):
    assert main(["measure", "llama-tiny", *more]) == 2
    assert f"{field} = " in capsys.readouterr().err


def test_without_a_limit_of_memory_a_processor_gives_no_more_than_is_free(monkeypatch):
    monkeypatch.setattr(measuring, "available_bytes", lambda: 5 * MIB)
    assert measuring._memory_bytes(measuring.Options()) == 5 * MIB
    assert measuring._memory_bytes(measuring.Options(memory_bytes=7 * MIB)) == 7 * MIB
    assert measuring._memory_bytes(measuring.Options(device="cuda")) == measuring.MEMORY_BYTES
    monkeypatch.setattr(measuring, "available_bytes", lambda: None)
    assert measuring._memory_bytes(measuring.Options()) == measuring.MEMORY_BYTES


def test_no_memory_at_all_is_no_limit(capsys):
    assert main(["measure", "llama-tiny", "--seq-len", "8", "--memory-limit", "0GiB"]) == 2
    assert "memory_limit = 0GiB: is nothing" in capsys.readouterr().err


def test_what_a_plan_says_of_the_allocator_reaches_a_gpus_and_is_said_to_change_nothing_on_a_processor(
    monkeypatch,
):
    asked = plan_of(seq_len=64, expandable_segments=True)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    settings = measuring._allocator_settings(asked, "cuda")
    assert settings["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"
    assert (
        environment_of({"environment": settings})["PYTORCH_CUDA_ALLOC_CONF"] == settings["PYTORCH_ALLOC_CONF"]
    )
    assert (
        measuring._allocator_settings(asked, "cpu")
        == measuring._allocator_settings(plan_of(seq_len=64), "cuda")
        == {}
    )
    assert "changes nothing here" in measuring._idle_option_notes(asked, measuring.Options())[0]
    assert measuring._idle_option_notes(asked, measuring.Options(vary_length=True)) == ()


def test_memory_that_runs_out_after_the_recorded_step_is_said_as_such(monkeypatch):
    def starved(_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2097152 bytes.")

    monkeypatch.setattr(requests, "_measure_planned_job", starved)
    with pytest.raises(InputError, match=r"ran out after a step was recorded.*for 2\.00 MiB more"):
        requests.answer({"device": "cpu"})
    monkeypatch.setattr(
        requests, "_measure_planned_job", lambda _: (_ for _ in ()).throw(RuntimeError("another"))
    )
    with pytest.raises(RuntimeError, match="another"):
        requests.answer({"device": "cpu"})
