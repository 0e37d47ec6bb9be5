"""A stage of four parts, each of one parameter, whose tapes are written by hand."""

from __future__ import annotations

from typing import Any

from memsheet.catalog import find_device
from memsheet.formulas.groups import Group, Layers, StageLayers
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.tapes.bytes_by_path import EMPTY
from memsheet.formulas.tapes.evaluate import Part
from memsheet.formulas.tapes.tape import Entry, Event, Log, Tape
from memsheet.plan.device import cluster_of
from memsheet.plan.dtypes import FP32, INT8
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

EVENTS = {"+": Event.ALLOC, "-": Event.FREE, "g": Event.GRADIENT}


def log(text: str) -> Log:
    return tuple((EVENTS[word[0]], int(word[1:])) for word in text.split())


def part(sizes: tuple[int, ...], forward: str, backward: str, handed: set[int], output: int) -> Part:
    tape = Tape(
        entries=tuple(Entry(str(number), (size,), INT8) for number, size in enumerate(sizes)),
        forward=log(forward),
        backward=log(backward),
        saved=frozenset(handed),
        cached=frozenset(),
        outputs=frozenset({output}),
        handed=frozenset(handed),
    )
    none = dict.fromkeys(("retained", "cached", "forward", "backward", "gradients", "arriving"), EMPTY)
    return Part(**none, output=sizes[output], played=(tape, None, {}))


def group(name: str, shape: tuple[int, int], of: Part) -> Group:
    parameter = HeldTensor(path=name, shape=shape, dtype=FP32, trains=True, role=Role.LINEAR, times=1)
    return Group(name, of, of, (parameter,), EMPTY)


def stage(layers: int = 2, *, tied: bool = False) -> StageLayers:
    """A stream of 40 bytes, logits of 60, a loss of 4; gradients of parameters of 81, 53 and 37.

    On each of four ranks in fp32: of 10 x 4 three rows, 48 bytes, of 8 x 3 two, 24, of 6 x 2 two, 16. Sent in
    bf16: 24, 12 and 8; arriving from all: 96, 48 and 32, as the parameters themselves. Gradients of four
    padded shards, in fp32: 192, 96 and 64.
    """
    embeddings = group("embeddings", (10, 4), part((40, 40, 81), "+0", "+1 +2 g2 -1", set(), 0))
    layer = group("layer", (8, 3), part((40, 40, 40, 53, 40), "+1", "+2 +3 g3 +4 -2 -4", {0}, 1))
    head = group("head", (6, 2), part((40, 60, 60, 37, 40), "+1", "+2 +3 g3 +4 -2 -4", {0}, 1))
    loss = part((60, 4, 60), "+1", "+2 -2", {0}, 1)
    return StageLayers(embeddings, (Layers((layer,), layers),), head, loss, tied)


def planned(gpus: int = 4, **request: Any) -> Plan:
    config = {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    asked = {
        "task": "train",
        "engine": "fsdp2",
        "seq_len": 16,
        "microbatch": 3,
        "recompute.mode": "none",
        **request,
    }
    return resolve_request(asked, read_hf_config(config), cluster_of(find_device("H100-80GB"), gpus)).plan
