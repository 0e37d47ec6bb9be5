"""The loop in C does what the loops in Python do, to the byte; what it does not do it refuses.

It is compiled here of its source as it is, whatever is installed.
"""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from memsheet.account import replayed_rank_sheet
from memsheet.allocator import compiled, whole_script
from memsheet.allocator.conf import settings_from
from memsheet.allocator.settings import Settings
from memsheet.allocator.whole_script import (
    Marks,
    append_shifted,
    live_peak_bytes,
    play_in_python,
    play_whole_script,
    shift_events,
)
from memsheet.catalog import find_gpus, find_model
from memsheet.formulas.replay import steps
from memsheet.plan.device import cluster_of
from memsheet.questions.accounted import answer_for_model
from memsheet.readers.hf_config import read_hf_config
from memsheet.units import MIB

ROOT = Path(__file__).parents[4]
SOURCE = ROOT / "src" / "memsheet" / "allocator" / "compiled" / "play.c"
CONF = (
    "", "expandable_segments:True", "roundup_power2_divisions:4", "large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:32", "per_process_memory_fraction:0.7",
    "expandable_segments:True,per_process_memory_fraction:0.7", "max_split_size_mb:24",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "expandable_segments:True,garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
)  # fmt: skip
SIZES = (
    0, 1, 512, 513, 700, MIB - 512, MIB, MIB + 1, 2 * MIB, 5 * MIB, 9 * MIB + 3, 10 * MIB, 12 * MIB, 19 * MIB, 21 * MIB,
    33 * MIB, 50 * MIB, 300 * MIB,
)  # fmt: skip
SCRIPTS = 4000


class Hook:
    """In place of the build tool's own, which is there while something is built, and not here."""

    def __init__(self, root: Path) -> None:
        self.root, self.said = str(root), list[str]()
        self.app = SimpleNamespace(display_warning=self.said.append)


@pytest.fixture(scope="module")
def building() -> Iterator[ModuleType]:
    """``hatch_build.py``."""
    with pytest.MonkeyPatch.context() as patch:
        interface = "hatchling.builders.hooks.plugin.interface"
        for name in (
            "hatchling",
            "hatchling.builders",
            "hatchling.builders.hooks",
            "hatchling.builders.hooks.plugin",
        ):
            patch.setitem(sys.modules, name, ModuleType(name))
        patch.setitem(sys.modules, interface, SimpleNamespace(BuildHookInterface=Hook))
        yield loaded("hatch_build", ROOT / "hatch_build.py")


@pytest.fixture(scope="module")
def built(building: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """``play.c``, compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MEMSHEET_PURE", raising=False)
        hindered = building.hinders_compiling()
    library = tmp_path_factory.mktemp("compiled") / building.LIBRARY
    reason = hindered or building.compile_library(SOURCE, library)
    if "compiler is found" in reason or hindered:
        pytest.skip(reason)
    assert reason == ""
    return loaded("memsheet.allocator.compiled.play", library)


@pytest.fixture
def in_c(built: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Marks | None]:
    """What the compiled loop answered."""
    answers: list[Marks | None] = []

    def answered(*args: Any) -> Any:
        answers.append(built.play_script(*args))
        return answers[-1]

    loops = SimpleNamespace(play_script=answered, shift_events=built.shift_events, live_peak=built.live_peak)
    monkeypatch.setattr(whole_script, "compiled_loops", loops)
    return answers


def loaded(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def crowd(chance: Random, longest: int) -> tuple[list[int], list[int], list[int]]:
    """Requests and releases in any order, of sizes on both sides of every boundary, in up to four streams."""
    events, sizes, streams, live = list[int](), list[int](), list[int](), list[int]()
    keep, some = chance.uniform(0.35, 0.6), chance.sample(SIZES, chance.randint(2, len(SIZES)))
    for _ in range(chance.randint(0, longest)):
        if live and chance.random() < keep:
            events.append(~live.pop(chance.randrange(len(live))))
        else:
            live.append(len(sizes))
            events.append(len(sizes))
            sizes.append(chance.choice(some) + chance.choice((0, 0, 0, 1, 512)))
            streams.append(chance.randrange(4))
    return events, sizes, streams


# ---- the same answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", CONF)
def test_any_script_reserves_the_same(in_c: list[Marks | None], conf: str) -> None:
    how, dead, flushed = settings_from(conf), 0, 0
    for seed in range(SCRIPTS // len(CONF)):
        chance = Random(seed)
        script = crowd(chance, 300 if seed % 10 == 0 else 80)
        start = chance.randint(0, len(script[0]) + 1)
        free = play_in_python(*script, start, how)
        assert free is not None
        most = max(free.reserved, free.before)
        for room in (None, most, most - 1, *(chance.randint(0, most) for _ in range(3))):
            capacity = None if room is None else max(room, 0)
            found = play_in_python(*script, start, how, capacity)
            assert play_whole_script(*script, start, how, capacity) == found, (seed, start, capacity)
            dead += found is None
            flushed += found is not None and found.retries > 0
    assert dead
    assert flushed
    assert bool(in_c) is (conf not in CONF[-3:-1])


def test_events_are_shifted_and_live_bytes_counted_alike(
    built: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(200):
        chance = Random(seed)
        events, sizes, _ = crowd(chance, 100)
        numbers = array("q", events), array("q", sizes)
        start, by = chance.randint(0, 110), chance.randint(0, 2**50)
        ends = []
        for loops in (built, None):
            monkeypatch.setattr(whole_script, "compiled_loops", loops)
            longer = array("q", [3])
            append_shifted(longer, numbers[0], by)
            assert longer == array("q", [3]) + shift_events(numbers[0], by)
            ends.append((longer, live_peak_bytes(*numbers, start)))
        assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("error", "args"),
    [
        (IndexError, ([1], [1])),
        (IndexError, ([~1], [1])),
        (OverflowError, ([0, 0, 0], [2**60])),
        (OverflowError, ([0], [2**61])),
        (OverflowError, ([0], [-1])),
        (TypeError, (b"\0", [1])),
        (TypeError, ([0], b"\0")),
    ],
)
def test_live_bytes_that_cannot_be_counted_are_an_error(
    built: ModuleType, error: type[Exception], args: tuple[Any, Any]
) -> None:
    with pytest.raises(error):
        built.live_peak(*(array("q", one) if isinstance(one, list) else one for one in args), 0)


@pytest.mark.parametrize(
    ("error", "events", "by"),
    [
        (OverflowError, array("q", [2**61]), 1),
        (OverflowError, array("q", [-(2**63)]), 1),
        (OverflowError, array("q", [0]), -1),
        (OverflowError, array("q", [0]), 2**64),
        (TypeError, b"\0", 1),
    ],
)
def test_events_that_cannot_be_shifted_are_an_error(
    built: ModuleType, error: type[Exception], events: Any, by: int
) -> None:
    with pytest.raises(error):
        built.shift_events(events, by)


def test_live_bytes_beyond_its_numbers_are_counted_in_python(
    built: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_script, "compiled_loops", built)
    assert live_peak_bytes(array("q", [0, 0, 0]), array("q", [2**60]), 0) == 3 * 2**60


QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fsdp2": ("llama-3.2-1b", "4xRTX4090", {"engine": "fsdp2", "zero": 3, "seq_len": 1024, "recompute.mode": "full"}),
    "fsdp2, expandable": ("llama-3.2-1b", "4xRTX4090", {"engine": "fsdp2", "zero": 3, "seq_len": 1024, "allocator.expandable_segments": True}),
    "fsdp1": ("llama-3.2-1b", "8xA100-80GB", {"engine": "fsdp1", "zero": 3, "seq_len": 2048}),
    "deepspeed of states": ("llama-3.2-1b", "4xA100-80GB", {"engine": "deepspeed", "zero": 2, "seq_len": 1024}),
    "deepspeed of all": ("llama-3.2-1b", "4xA100-80GB", {"engine": "deepspeed", "zero": 3, "seq_len": 1024}),
    "deepspeed, expandable": ("llama-3.2-1b", "4xA100-80GB", {"engine": "deepspeed", "zero": 3, "seq_len": 1024, "allocator.expandable_segments": True}),
    "megatron": ("llama-3.2-1b", "4xA100-80GB", {"engine": "megatron", "seq_len": 2048, "mesh.tp": 2}),
    "megatron in stages": ("llama-3.2-1b", "8xA100-80GB", {"engine": "megatron", "seq_len": 2048, "mesh.pp": 4, "global_batch": 16}),
    "one card": ("qwen2.5-0.5b", "1xRTX4090", {"seq_len": 512}),
    "adapters": ("llama-3.2-1b", "1xRTX4090", {"seq_len": 512, "adapter.rank": 8}),
    "replicated": ("gpt2", "2xRTX4090", {"zero": 0, "seq_len": 512}),
    "varied lengths": ("gpt2", "1xRTX4090", {"engine": "ms-swift", "seq_len": 512, "seq_len_kind": "maximum"}),
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_steps_of_engines_reserve_the_same(
    in_c: list[Marks | None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found: list[tuple[Marks | None, Marks | None]] = []

    def both(*args: Any) -> Marks | None:
        found.append((play_whole_script(*args), play_in_python(*args)))
        for room in (0.9, 1.0):  # of what it takes
            most = max(found[-1][1]) if found[-1][1] else 0
            tight = (*args[:5], int(most * room))
            found.append((play_whole_script(*tight), play_in_python(*tight)))
        return found[-3][1]

    monkeypatch.setattr(steps, "play_whole_script", both)
    monkeypatch.setattr(steps, "_replayed", {})
    model, gpus, request = QUESTIONS[name]
    count, device = find_gpus(gpus)
    config = (find_model(model) or {})["config"]
    spec = read_hf_config(config, name=model)
    replayed_rank_sheet.cache_clear()
    answer_for_model(spec, {"task": "train", **request}, cluster_of(device, count or 1))
    assert len(in_c) == len(found) > 0
    assert all(mine == reference for mine, reference in found)


# ---- what it refuses ---------------------------------------------------------------------------------------

Answer = Callable[..., Any]


@pytest.fixture
def played(built: ModuleType) -> Answer:
    def answer(
        events: Any, sizes: Any, streams: Any = None, start: int = 0, capacity: int = -1, limit: int = -1
    ) -> Any:
        numbers = [array("q", one) if isinstance(one, list) else one for one in (events, sizes)]
        streams = bytes(len(numbers[1])) if streams is None else streams
        return built.play_script(*numbers, streams, start, False, 20 * MIB, capacity, limit)

    return answer


@pytest.mark.parametrize(
    ("error", "args"),
    [
        (IndexError, ([1], [512])),
        (IndexError, ([~1], [512])),
        (IndexError, ([0], [])),
        (IndexError, ([2**63 - 1], [512])),
        (IndexError, ([-(2**63)], [512])),
        (ValueError, ([0, ~0, ~0], [512])),
        (ValueError, ([0], [512], b"")),
        (ValueError, ([0], [512], b"\0\0")),
        (OverflowError, ([0], [-1])),
        (OverflowError, ([0], [2**63 - 1])),
        (OverflowError, ([0, 0, 0], [2**59])),
        (OverflowError, ([0], [512], None, 0, 2**62)),
        (OverflowError, ([0], [512], None, 0, 2**80)),
        (TypeError, (b"\0", [512])),
        (TypeError, ([0], array("i", [512, 0]))),
        (TypeError, (memoryview(bytes(17))[1:].cast("q"), [512, 0])),
        (TypeError, ([0], [512], array("h", [0]))),
        (TypeError, (None, [512])),
        (BufferError, (memoryview(array("q", [0, 0, 0]))[::2], [512])),
    ],
)
def test_what_it_cannot_play_is_an_error(
    played: Answer, error: type[Exception], args: tuple[Any, ...]
) -> None:
    with pytest.raises(error):
        played(*args)


def test_what_was_never_made_is_not_released(played: Answer) -> None:
    """As in Python: nothing is made for 0 bytes, however often it goes."""
    assert played([~0, 0, ~0, ~0], [0]) == (0, 0, 0, 0)
    assert played([~0, 0], [MIB]) == (2 * MIB, MIB, 0, 0)
    assert played([0], [3 * MIB], None, 0, 19 * MIB) is None
    assert played([0], [3 * MIB], None, 0, -1, 19 * MIB) is None


@pytest.mark.parametrize(
    ("events", "sizes", "streams"),
    [([0, 1], [2**61, 512], [0, 0]), ([0], [2**70], [0]), ([0], [512], [256]), ([0, ~0, 0], [512], [-1])],
)
def test_what_it_refuses_python_plays(
    in_c: list[Marks | None], events: list[int], sizes: list[int], streams: list[int]
) -> None:
    found = play_whole_script(events, sizes, streams, 0, Settings())
    assert found == play_in_python(events, sizes, streams, 0, Settings())
    assert in_c == []


def test_an_index_outside_is_an_error_either_way(in_c: list[Marks | None]) -> None:
    for play in (play_whole_script, play_in_python):
        with pytest.raises(IndexError):
            play([1], [512], [0], 0, Settings())
    assert in_c == []


# ---- where it is not there ---------------------------------------------------------------------------------


def test_python_and_c_speak_of_one_interface(built: ModuleType) -> None:
    assert built.INTERFACE == compiled.INTERFACE


def test_a_library_of_another_interface_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(INTERFACE=compiled.INTERFACE + 1)
    monkeypatch.setitem(sys.modules, "memsheet.allocator.compiled.play", other)
    monkeypatch.setattr(compiled, "play", other, raising=False)
    monkeypatch.delenv("MEMSHEET_PURE", raising=False)
    assert compiled._compiled_loops() is None


def test_python_plays_where_it_is_told_to() -> None:
    asked = "from memsheet.allocator.compiled import compiled_loops; print(compiled_loops)"
    line, around = [sys.executable, "-c", asked], {"MEMSHEET_PURE": "1"}
    assert subprocess.run(line, env=around, check=True, capture_output=True, text=True).stdout == "None\n"


def hooked(building: ModuleType, root: Path, version: str) -> tuple[dict[str, Any], list[str], bool]:
    """What the build tool is told, what it says, and whether the library lies beside its source."""
    folder = root / building.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    hook, told = building.CompiledLoop(root), {"force_include": {}}
    hook.initialize(version, told)
    hook.finalize(version, told, "")
    assert not Path(hook.scratch).exists()
    return told, hook.said, (folder / building.LIBRARY).exists()


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"MEMSHEET_PURE": "1"}, None, "MEMSHEET_PURE is set"),
        ({"CC": "no-such-compiler"}, None, "no-such-compiler"),
        ({"PATH": "/nowhere"}, None, "no C compiler is found"),
        ({"PYODIDE": "1"}, None, "platform"),
        ({}, "int x = ;\n", "error"),
        ({}, "#include <no_such_header.h>\n", "no_such_header.h"),
    ],
)
@pytest.mark.parametrize("version", ["editable", "standard"])
def test_an_install_goes_on_without_it_and_says_so_in_one_line(
    built: ModuleType,
    building: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    variables: dict[str, str],
    code: str | None,
    said: str,
) -> None:
    del built  # there is a compiler
    monkeypatch.delenv("CC", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / building.FOLDER
    folder.mkdir(parents=True)
    (folder / "play.c").write_text(SOURCE.read_text() if code is None else code)
    (folder / building.LIBRARY).write_bytes(b"of another source")
    told, lines, beside = hooked(building, tmp_path, version)
    assert told == {"force_include": {}}
    assert [said in line and "\n" not in line for line in lines] == [True]
    assert beside is (version == "standard")


def test_in_place_it_lies_beside_its_source_and_else_in_the_wheel(
    built: ModuleType, building: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del built
    monkeypatch.delenv("MEMSHEET_PURE", raising=False)
    folder = tmp_path / building.FOLDER
    folder.mkdir(parents=True)
    (folder / "play.c").write_bytes(SOURCE.read_bytes())
    told, said, beside = hooked(building, tmp_path, "standard")
    assert (said, beside, told["pure_python"]) == ([], False, False)
    assert [*told["force_include"].values()] == ["memsheet/allocator/compiled/play.abi3.so"]
    assert told["tag"].startswith("cp311-abi3-")
    assert hooked(building, tmp_path, "editable") == ({"force_include": {}}, [], True)
