"""A real step on this machine's processor: what it allocates is what the trace said, and what the profiler
counts besides is named.
"""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.cli import main
from memsheet.measure.cuda import count_cuda_peaks
from memsheet.questions.measured import measured_sheet
from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark, Storage, Timeline
from memsheet.trace.parent import Traced

pytestmark = pytest.mark.usefixtures("warm_children")
JOB = [
    "llama-tiny",
    "--seq-len",
    "128",
    "--microbatch",
    "2",
    "--precision",
    "bf16-autocast",
    "--recompute",
    "full",
]
BAR = 0.001


def asked(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def told():
    return {}


@pytest.fixture
def sheets(capsys, told):
    if not told:
        told["measured"] = asked(capsys, "measure", *JOB, "--steps", "1")
        told["traced"] = asked(capsys, "trace", *JOB, "--device", "cpu", "--no-scratch")
    return told


def held(document, instant):
    (rank,) = document["ranks"]
    return {(i["component"], i["path"]): i["at"][instant] for i in rank["items"] if instant in i["at"]}


def test_a_real_step_holds_what_was_traced(sheets):
    assert sheets["measured"]["witness"] == "measured"
    for instant in ("load", "forward", "loss", "backward", "optimizer_step"):
        measured, traced = held(sheets["measured"], instant), held(sheets["traced"], instant)
        rest = measured.pop(("unexplained", "kernels"), 0)
        assert measured == traced, instant
        if instant == "backward":  # the peak
            assert abs(rest) <= BAR * sum(traced.values())


def test_the_sheet_adds_up_to_what_the_profiler_counted(sheets):
    counted = sheets["measured"]["trace"]["measured"]["instants"]
    assert counted["backward"] == max(counted.values())
    for instant, size in counted.items():
        assert sum(held(sheets["measured"], instant).values()) == size


def test_a_step_is_timed(sheets):
    found = sheets["measured"]["trace"]["measured"]
    assert found["steps"] == 1
    assert 0 < found["fastest_s"] <= found["step_s"] <= found["slowest_s"]
    assert found["tokens_per_s"] == pytest.approx(2 * 128 / found["step_s"], rel=0.01)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--device", "tpu"], "device"),
        (["--gpus", "1xH100-80GB"], "gpus"),
        (["--steps", "0"], "steps"),
        (["--vocab-multiple", "64"], "vocab_multiple"),
    ],
)
def test_what_is_not_measured_is_refused(capsys, flags, field):
    assert main(["measure", *JOB, *flags]) == 2
    assert f"{field} = " in capsys.readouterr().err


def test_an_engine_that_needs_its_own_cluster_is_refused(capsys):
    assert main(["measure", "llama-tiny", "--seq-len", "256", "--engine", "deepspeed"]) == 2
    assert "engine = deepspeed" in capsys.readouterr().err


class Card:
    """Counters as torch.cuda has them, of an allocator that is told what it holds."""

    def __init__(self):
        self.held = self.top = self.kept = 0

    def hold(self, size):
        self.held, self.top = size, max(self.top, size)
        self.kept = max(self.kept, size)

    def reset_peak_memory_stats(self):
        self.top = self.held

    def memory_stats(self):
        return {
            "requested_bytes.all.peak": self.top - 1,
            "allocated_bytes.all.peak": self.top,
            "reserved_bytes.all.peak": self.kept + 2,
        }

    def current_device(self):
        return 3

    def mem_get_info(self):
        return 1000 - self.kept - 100, 1000


def test_counters_of_a_card_are_read_where_the_step_says_it_is():
    card = Card()

    def run(at):
        for first, second in ((50, 70), (40, 60)):
            at(Instant.LOAD)
            at(Instant.FORWARD)
            card.hold(first)
            at(Instant.BACKWARD)
            card.hold(second)
            card.hold(10)

    found = count_cuda_peaks(run, card, {3: 77}.get)
    assert found.allocated == {"load": 10, "forward": 40, "backward": 60}  # the second step's
    assert found.requested == {"load": 9, "forward": 39, "backward": 59}
    assert found.reserved == {"load": 72, "forward": 72, "backward": 72}
    assert (found.device, found.process) == (170, 77)


def test_a_measured_sheet_of_a_card_adds_up_to_what_the_driver_gave():
    timeline = Timeline(
        storages=(
            Storage(30, Component.PARAMETERS, "w", "aten.empty"),
            Storage(10, Component.TEMPORARIES, "x", "aten.mul"),
        ),
        events=(0, 1),
        marks=(Mark(1, Instant.LOAD), Mark(1, Instant.FORWARD)),
    )
    measured = {
        "instants": {"load": 30, "forward": 45},
        "requested": {"load": 30, "forward": 42},
        "reserved": {"load": 64, "forward": 64},
        "device_bytes": 100,
        "device": "cuda",
    }
    sheet = measured_sheet(
        Traced(rank=0, stage=0, timeline=timeline, facts={"torch": "2.13", "measured": measured})
    )
    assert (sheet.allocated.value, sheet.reserved.value, sheet.device.value) == (45, 64, 100)
    rest = {
        item.path: item.at[Instant.FORWARD].value
        for item in sheet.items
        if item.component is Component.UNEXPLAINED
    }
    assert rest == {"kernels": 2, "rounding": 3}
