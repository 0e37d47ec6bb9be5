"""A fix does what it promises to whoever adds its flags to the command."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.catalog import find_device
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.plan.device import Cluster
from memsheet.report.json.sheet import sheet_document
from memsheet.report.screen.changes import memory_after_fix
from memsheet.report.shared.look import Look
from memsheet.report.shared.sizes import MOST_DIGITS, look_with_exact_digits
from memsheet.report.shared.words import flags_of
from memsheet.sheet import Bytes

QUESTIONS = [
    (
        "llama-3.1-8b",
        {"gpus": "8xA100-80GB", "engine": "transformers", "precision": "bf16-autocast", "seq_len": 2048},
    ),
    ("llama-3.1-8b", {"gpus": "8xA100-80GB", "engine": "transformers", "precision": "fp32", "seq_len": 2048}),
    (
        "llama-3.1-8b",
        {
            "gpus": "8xA100-80GB",
            "engine": "transformers",
            "seq_len": 2048,
            "microbatch": 4,
            "dp_replicate": 8,
        },
    ),
    (
        "qwen2.5-7b",
        {
            "gpus": "1xRTX4090",
            "seq_len": 1000,
            "precision": "fp32",
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
        },
    ),
    ("qwen2.5-7b", {"gpus": "1xRTX4090", "seq_len": 4096, "lora_rank": 16, "quantize": "nf4"}),
    ("llama-3-70b", {"gpus": "8xA100-80GB", "engine": "fsdp2", "zero": 3, "seq_len": 2048, "microbatch": 4}),
    (
        "llama-3-70b",
        {
            "gpus": "8xA100-80GB",
            "engine": "fsdp2",
            "zero": 3,
            "dp_shard": 8,
            "seq_len": 2048,
            "microbatch": 4,
            "host_memory": "256GiB",
        },
    ),
    ("llama-2-7b", {"gpus": "1xA100-80GB", "seq_len": 4096, "optimizer_implementation": "foreach"}),
    (
        "llama-2-13b",
        {"gpus": "4xA100-80GB", "engine": "deepspeed", "zero": 1, "seq_len": 4096, "microbatch": 2},
    ),
]


@pytest.mark.parametrize(("model", "options"), QUESTIONS)
def test_a_fix_holds_when_its_flags_are_added(
    model: str, options: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = memsheet.train(model, **options)
    assert answer.verdict is not None
    fix = answer.verdict.cheapest_fix
    assert fix is not None
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    added = shlex.split(flags_of(fix))
    names = {word for word in added if word.startswith("--")}
    kept = [word for at in range(0, len(flags), 2) if flags[at] not in names for word in flags[at : at + 2]]
    assert main(["train", model, *kept, *added, "--json"]) == 0
    assert f'"device_bytes": {fix.device.value}' in capsys.readouterr().out


# ---- the same of any job -----------------------------------------------------------------------------------

MODELS = (
    "llama-3.2-1b",
    "llama-3.1-8b",
    "llama-2-7b",
    "qwen2.5-7b",
    "llama-3-70b",
    "mixtral-8x7b",
    "gpt2-xl",
    "gemma-2-9b",
    "qwen3-30b-a3b",
)
GPUS = ("1xRTX4090", "4xRTX4090", "8xRTX4090", "6xRTX4090", "1xA100-80GB", "4xA100-80GB", "8xA100-80GB", "16xH100-80GB", "64xH100-80GB", "1xL4",
        "8xV100-16GB", "1xT4")  # fmt: skip
OPTIONS: dict[str, tuple[float, tuple[Any, ...]]] = {
    "engine": (0.7, ("transformers", "fsdp2", "deepspeed", "megatron", "torchtitan", "fsdp1")), "zero": (0.5, (0, 1, 2, 3)),
    "microbatch": (0.6, (1, 2, 3, 4, 8, 16)), "precision": (0.2, ("fp32", "bf16-pure", "bf16-master", "bf16-autocast")),
    "recompute": (0.2, ("full", "selective")), "optimizer": (0.2, ("adamw", "sgd", "adamw_8bit")), "tp": (0.2, (2, 4)),
    "optimizer_implementation": (0.2, ("foreach", "fused")), "offload": (0.2, ("activations", "optimizer")), "global_batch": (0.1, (8, 64)),
    "dp_shard": (0.1, (2, 4, 8)), "lora_rank": (0.2, (8,)), "host_memory": (0.1, ("64GiB", "512GiB")), "nodes": (0.1, (1, 2)),
}  # fmt: skip
"""What a job may say, how often, and with which values."""


def drawn(seed: int) -> Iterator[tuple[str, dict[str, Any], Answer]]:
    """Jobs that are legal and for which a fix is named, one after another."""
    rng = random.Random(seed)
    while True:
        options: dict[str, Any] = {"gpus": rng.choice(GPUS), "seq_len": rng.choice((512, 2048, 4096))}
        options |= {
            key: rng.choice(values) for key, (often, values) in OPTIONS.items() if rng.random() < often
        }
        model = rng.choice(MODELS)
        try:
            answer = memsheet.train(model, **options)
        except InputError:
            continue
        if answer.verdict is not None and answer.verdict.cheapest_fix is not None:
            yield model, options, answer


def as_typed(options: dict[str, Any], added: list[str]) -> list[str]:
    """A command's flags with others added, which take the place of those of the same name."""
    names = {word for word in added if word.startswith("--")}
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
    return [*(word for flag in flags if flag[0] not in names for word in flag), *added]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_any_fix_can_be_typed_and_says_what_comes_of_it(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for model, options, answer in islice(drawn(seed), 5 if seed == 1 else 25):
        assert answer.verdict is not None
        fix = answer.verdict.cheapest_fix
        assert fix is not None
        command = ["train", model, *as_typed(options, shlex.split(flags_of(fix))), "--json"]
        assert main(command) == 0, command
        assert json.loads(capsys.readouterr().out)["verdict"]["device_bytes"] == fix.device.value, command
        chain = [answer.verdict.device.value, *(change.after_bytes for change in fix.changes)]
        assert chain == [*(change.before_bytes for change in fix.changes), fix.device.value], command
        assert len({change.words for change in fix.changes}) == len(fix.changes), command
        assert all(change.after_bytes < change.before_bytes for change in fix.changes), command
        promised, accounted = promised_and_accounted(answer)
        assert accounted == promised, command


def promised_and_accounted(answer: Answer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the changes of an answer's JSON promise, and what they come to on top of its own plan."""
    document = sheet_document(answer)
    plan, fix, laid_out = document["plan"], document["verdict"]["cheapest_fix"], dict[str, Any]()
    for change in fix["changes"]:
        group, _, name = change["key"].rpartition(".")
        if name == "nodes":  # of a cluster, which is named beside a plan
            laid_out["nodes"] = change["to"]
        elif group:
            plan[group] = {**(plan[group] or {}), name: change["to"]}
        else:
            plan[name] = change["to"]
    again = sheet_document(memsheet.train(plan=plan, fix=False, **laid_out))["verdict"]
    names = ("device_bytes", "device_low_bytes", "device_high_bytes")
    return {name: fix[name] for name in names}, {name: again[name] for name in names}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama-3.1-8b", {"gpus": "1xA100-80GB", "seq_len": 8192}),
        (
            "llama-3.1-8b",
            {"gpus": "4xH100-80GB", "engine": "fsdp2", "cp": 2, "zero": 3, "seq_len": 65536},
        ),
    ],
)
def test_changes_on_top_of_the_answers_own_plan_come_to_what_they_promise(
    model: str, options: dict[str, Any]
) -> None:
    """Defaults of what a question left open stand in the plan: the dtypes of a model that is trained whole,
    the implementation of an optimizer.
    """
    promised, accounted = promised_and_accounted(memsheet.train(model, **options))
    assert accounted == promised


def test_gpus_in_their_usual_nodes_name_no_nodes() -> None:
    """Nodes are no key of a plan; they are named where the number of GPUs lays them out otherwise."""
    job: dict[str, Any] = {"engine": "torchtitan", "zero": 3, "seq_len": 2048, "recompute": "full"}
    named = []
    for layout in ({}, {"nodes": 4}):
        answer = memsheet.train("llama-3.1-405b", gpus="16xH100-80GB", **job, **layout)
        assert answer.verdict is not None
        assert answer.verdict.cheapest_fix is not None
        document = sheet_document(answer)["verdict"]["cheapest_fix"]
        named.append("nodes" in [change["key"] for change in document["changes"]])
    assert named == [False, True]


def test_doubled_twice_is_told_once() -> None:
    """More GPUs, and more again, are one change from the first count to the last."""
    answer = memsheet.train(
        "llama-3.1-405b",
        gpus="16xH100-80GB",
        engine="torchtitan",
        zero=3,
        seq_len=2048,
        recompute="full",
    )
    assert answer.verdict is not None
    fix = answer.verdict.cheapest_fix
    assert fix is not None
    more = [change for change in fix.changes if change.key == "gpus"]
    assert len(more) == 1
    assert more[0].words == "from 16xH100-80GB to 256xH100-80GB"


def test_what_fits_looks_as_if_it_did() -> None:
    """A need a few MiB below what the card gives is printed with as many digits as show it."""
    cluster = Cluster(device=find_device("H100-80GB"), per_node=1, nodes=1)
    room = cluster.device.framework_bytes
    plain = memsheet.train("llama-tiny", gpus="1xH100-80GB", seq_len=8)
    assert plain.verdict is not None
    for below in (0, 1, 2**10, 2**20, 4 * 2**20, 2**30, 20 * 2**30):
        verdict = replace(plain.verdict, device=Bytes.exact(room - below), headroom_bytes=below)
        for look in (Look(), Look(decimal=True)):
            shown = look_with_exact_digits(verdict, cluster, look)
            need, give = (
                float(words.split(" ")[0])
                for words in (shown.need(room - below, shown.digits), shown.room(room, shown.digits))
            )
            assert need <= give + 2 * 10**-MOST_DIGITS, (below, shown.digits)
            assert shown.digits == 2 or below < 2**24


def test_a_list_of_changes_is_printed_as_what_fits() -> None:
    """The high end of what is left after it is no more than the room in the digits that are shown."""
    plain = memsheet.train("llama-3.1-8b", gpus="1xRTX4090", seq_len=4096)
    assert plain.verdict is not None
    fix, cluster = plain.verdict.cheapest_fix, plain.cluster
    assert fix is not None
    assert cluster is not None
    room = cluster.device.framework_low_bytes
    for below in (0, 2**16, 2**20, 3 * 2**20, 2**24):
        high = room - below
        near = replace(fix, device=Bytes(low=high - 2**30, value=high - 2**29, high=high))
        words = memory_after_fix(near, plain, Look(digits=2))
        shown = words.split(" to ")[1].split(" ")[0]
        digits = len(shown.partition(".")[2])
        assert float(shown) <= room * 10**digits // 2**30 / 10**digits, (below, words)
