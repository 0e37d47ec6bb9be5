"""States and activations on the host, engine by engine: what leaves the device is on the host, and nothing
else changes.
"""

import json
from typing import Any

import pytest

import memsheet
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.sheet import Component, Instant, Sheet

C = Component
STATES = (C.PARAMETERS, C.MASTER_WEIGHTS, C.OPTIMIZER_STATES)
MOVES = [
    name
    for name in MODELLED
    if (found := find_engine(name)) and "train" in found.tasks and "activations" in found.offload
]
GATHERS = [name for name in MOVES if name != "transformers"]
RANKS = 8


def sheet(engine: str, offload: str | None = None, **more: Any) -> Sheet:
    asked = {
        "engine": engine,
        "gpus": f"{RANKS}xA100-80GB",
        "seq_len": 1024,
        "microbatch": 2,
        "fix": False,
        **more,
    }
    if offload:
        asked["plan"] = {
            "offload": {name: True if name == "activations" else 1 for name in offload.split(",")}
        }
    return memsheet.train("llama-2-7b", **asked).sheets[0]


# ---- FullyShardedDataParallel ------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fsdp2-mixed", "bf16-pure"])
def test_fsdp1_leaves_gathered_units_and_reduced_gradients_on_the_device(precision: str) -> None:
    plain, moved = (
        sheet("fsdp1", offload, precision=precision) for offload in (None, "optimizer,parameters")
    )
    assert all(
        not moved.of(component, instant=instant).value for component in STATES for instant in moved.instants
    )
    kept = sum(plain.of(component, instant=Instant.LOAD).value for component in STATES)
    shard = plain.of(C.PARAMETERS, instant=Instant.LOAD).value // RANKS if precision != "fsdp2-mixed" else 0
    for instant in (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD):
        left = moved.at(instant).value - (plain.at(instant).value - kept)
        assert 0 <= left <= shard, (
            instant
        )  # without a cast, a unit's own part comes up beside what is gathered
    assert (
        moved.of(C.GRADIENTS, instant=Instant.BACKWARD).value
        == plain.of(C.GRADIENTS, instant=Instant.BACKWARD).value
    )
    assert not moved.of(C.GRADIENTS, instant=Instant.OPTIMIZER_STEP).value


def test_fsdp1_has_on_the_host_what_fsdp2_has() -> None:
    """Parameters, gradients and states of a rank, up to the padding of flat parameters and of single
    tensors.
    """
    first, second = (sheet(engine, "optimizer,parameters").host_bytes for engine in ("fsdp1", "fsdp2"))
    assert first == pytest.approx(second, rel=1e-3)
    assert first == pytest.approx(16 * 6_738_415_616 / RANKS, rel=1e-3)


@pytest.mark.parametrize(("offload", "more", "field"), [("optimizer", {}, "offload.parameters"), ("parameters", {}, "offload.optimizer"), ("optimizer,parameters", {"global_batch": 64}, "global_batch")])  # fmt: skip
def test_fsdp1_moves_all_or_nothing_and_one_micro_batch(
    offload: str, more: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as caught:
        sheet("fsdp1", offload, **more)
    assert field in {problem.field for problem in caught.value.problems}


# ---- activations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", GATHERS)
@pytest.mark.parametrize("states", ["", "optimizer,parameters"])
def test_recomputed_layers_hand_their_inputs_to_the_host(engine: str, states: str) -> None:
    """A bf16 input a layer and sequence leaves the device, and lies on the host beside whatever states do."""
    more = {"zero": 3} if engine == "deepspeed" else {}
    kept, moved = (
        sheet(engine, offload, recompute="full", **more)
        for offload in (states or None, ",".join(filter(None, (states, "activations"))))
    )
    inputs = 31 * 2 * 1024 * 4096 * 2  # of every layer but the one at work
    before, after = (each.of(C.SAVED_ACTIVATIONS, instant=Instant.LOSS).value for each in (kept, moved))
    assert before - after >= inputs
    assert moved.host_bytes - kept.host_bytes >= before - after
    assert moved.at(Instant.BACKWARD).value <= kept.at(Instant.BACKWARD).value
    assert moved.at(Instant.LOAD) == kept.at(Instant.LOAD)


@pytest.mark.parametrize("engine", GATHERS)
def test_gathered_parameters_are_never_moved_with_them(engine: str) -> None:
    with pytest.raises(InputError, match="recompute"):
        sheet(engine, "activations")


@pytest.mark.usefixtures("warm_children")
def test_the_real_code_keeps_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """fully_shard over two ranks with hooks on what is saved, on tensors without memory: item by item, within
    a thousandth of the peak.
    """
    asked = [
        "llama-tiny",
        "--engine",
        "fsdp2",
        "--dp-shard",
        "2",
        "--seq-len",
        "256",
        "--microbatch",
        "4",
        "--recompute",
        "full",
        "--offload",
        "activations",
        "--json",
    ]
    found = []
    for command in ("train", "trace"):
        assert main([command, *asked]) == 0
        rank = json.loads(capsys.readouterr().out)["ranks"][0]
        sizes: dict[str, int] = {}
        for item in rank["items"]:
            sizes[item["component"]] = sizes.get(item["component"], 0) + item["at"].get("backward", 0)
        found.append(sizes)
    predicted, traced = found
    peak = sum(predicted.values())
    for component in {*predicted, *traced} - {"workspaces"}:
        assert predicted.get(component, 0) == pytest.approx(traced.get(component, 0), abs=peak / 1000), (
            component
        )
