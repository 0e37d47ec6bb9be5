"""Sequences shared by ranks that exchange heads, as accelerate has DeepSpeed run them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.plan import ContextParallel
from memsheet.questions import traced
from memsheet.sheet import Component, Instant, Sheet

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import Tensor, nn

from memsheet.run import ranks
from memsheet.run.mesh import submesh_along
from memsheet.trace.child import _answer_request, error_answer
from memsheet.trace.parent import trace_in_fork

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 64, "tie_word_embeddings": False, "head_dim": 64,
}  # fmt: skip
ASKED: dict[str, Any] = {
    "engine": "deepspeed", "dp_shard": 1, "cp": 4, "seq_len": 2048, "gpus": "4xH100-80GB",
}  # fmt: skip


def sheet(config: dict[str, Any] | str = TINY, **asked: Any) -> Sheet:
    return memsheet.train(config, **{**ASKED, **asked}, fix=False).sheets[0]


def bytes_of(held: Sheet, component: Component, instant: Instant = Instant.FORWARD) -> int:
    return held.of(component, instant=instant).value


# ---- against torch's own operations ------------------------------------------------------------------------


class _Exchange(torch.autograd.Function):
    """Along the first dimension, of which every rank has one part."""

    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor) -> Tensor:
        ctx.group = group
        out = torch.empty_like(x).contiguous()
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, _Exchange.apply(ctx.group, *grads)


def _by_heads(x: Tensor, group: Any) -> Tensor:
    """(s, b, heads, d) of a rank's positions → (b, its heads, all positions, d)."""
    degree = dist.get_world_size(group)
    if x.shape[2] < degree:
        x = x.repeat_interleave(degree // x.shape[2], dim=2)
    x = x.unflatten(2, (degree, x.shape[2] // degree)).permute(2, 0, 1, 3, 4).contiguous()
    return _Exchange.apply(group, x).flatten(0, 1)


def _by_positions(x: Tensor, group: Any) -> Tensor:
    """(all positions, b, width of a rank) → (s, b, the whole width)."""
    degree = dist.get_world_size(group)
    sent = x.unflatten(0, (degree, x.shape[0] // degree)).contiguous()
    return _joined_widths(_Exchange.apply(group, sent))


def _joined_widths(x: Tensor) -> Tensor:
    return x.permute(1, 2, 0, 3).flatten(2).contiguous()


def _exchanged(own: Any, group: Any) -> Any:
    """``own`` attention over all positions of a rank's heads."""

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, _: Any, **said: Any) -> tuple[Tensor, None]:
        places = [torch.empty_like(said["position_ids"]) for _ in range(dist.get_world_size(group))]
        dist.all_gather(places, said["position_ids"], group=group)
        said["position_ids"] = torch.cat(places, dim=1)
        three = [_by_heads(x.permute(2, 0, 1, 3), group) for x in (q, k, v)]
        for number in range(3):
            three[number] = three[number].permute(1, 2, 0, 3).contiguous()
        module.num_key_value_groups = three[0].shape[1] // three[1].shape[1]
        context = own(module, *three, None, **said)[0].transpose(0, 1).flatten(2)
        return _by_positions(context, group).transpose(0, 1), None

    return attend


class _Shared(nn.Module):
    """A model that is handed a rank's part of every sequence."""

    def __init__(self, called: nn.Module, degree: int, device: str) -> None:
        super().__init__()
        self.called, self.degree, self.device = called, degree, device
        self.placed: Any = lambda *_: None
        self.held = list[Tensor]()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        self.held.clear()
        length = input_ids.shape[1] // self.degree
        positions = torch.arange(length).expand(len(input_ids), -1)
        given = {
            "input_ids": input_ids[:, :length],
            "shift_labels": labels[:, :length],
            "position_ids": positions,
        }
        given = {name: part.contiguous().to(self.device) for name, part in given.items()}
        for name, part in given.items():
            self.placed(part, name)
        self.held = list(given.values())
        return self.called(**given, labels=given["shift_labels"])

    def close(self) -> None:
        self.held.clear()


def _traced(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], **asked: Any) -> tuple[Sheet, Sheet]:
    """Under fully_shard, which is traced, with attention exchanged: what is predicted and what is traced."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    own = FUNCTIONS["sdpa"]

    def apply(called: Any, _: Any, plan: Any, mesh: Any, device: str) -> _Shared:
        monkeypatch.setitem(
            FUNCTIONS._global_mapping, "sdpa", _exchanged(own, submesh_along(mesh, "cp").get_group())
        )
        return _Shared(called, int(plan.mesh.cp), device)

    def in_fork(asked: Any, *, memory_bytes: int, time_s: float, fresh: bool) -> Any:
        del time_s, fresh
        text = json.dumps({**asked, "memory_bytes": memory_bytes})
        return trace_in_fork(
            lambda: _answer_request(json.loads(text)), lambda error: error_answer(error, "tiny")
        )

    monkeypatch.setattr(ranks, "apply_context_parallel", apply)
    monkeypatch.setattr(traced, "traced_once", in_fork)
    engine = find_engine("fsdp2")
    before = engine.context_parallel
    object.__setattr__(engine, "context_parallel", (ContextParallel.ALL_TO_ALL,))
    plan = {**ASKED, "engine": "fsdp2", "precision": "bf16-pure", **asked}
    try:
        found, _ = traced.trace_with_timelines(config, traced.Options(scratch=False, rank=0), **plan)
        return memsheet.train(config, **plan, fix=False).sheets[0], found.sheets[0]
    finally:
        object.__setattr__(engine, "context_parallel", before)


@pytest.mark.parametrize(
    ("asked", "family"),
    [
        ({}, {}),
        ({"microbatch": 2, "recompute": "full"}, {"num_key_value_heads": 8}),
        ({"microbatch": 2}, {"num_key_value_heads": 1, "model_type": "qwen3"}),
        (
            {"recompute": "full", "cp": 8, "gpus": "8xH100-80GB"},
            {"num_key_value_heads": 8, "model_type": "qwen2"},
        ),
    ],
    ids=str,
)
def test_every_instant_is_that_of_the_real_operations(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], family: dict[str, Any]
) -> None:
    predicted, found = _traced(monkeypatch, {**TINY, **family}, **asked)
    for instant in found.instants:
        told, seen = predicted.at(instant).value, found.at(instant).value
        assert told == pytest.approx(seen, abs=1e-3 * found.peak.value), instant


# ---- laws --------------------------------------------------------------------------------------------------


def test_a_rank_keeps_its_part_of_every_sequence_and_of_the_states() -> None:
    """As much as of sequences of its own of as many tokens, whose heads it has all; and no less of states."""
    config = {**TINY, "num_key_value_heads": 8}
    alone = sheet(config, cp=1, dp_shard=4, seq_len=512, zero=3)
    shared = sheet(config, zero=3)
    whole = sheet(config, cp=1, dp_shard=4, zero=3)
    kept = [bytes_of(one, Component.SAVED_ACTIVATIONS) for one in (alone, shared, whole)]
    assert kept[0] <= kept[1] < kept[2] // 2
    for states in (Component.OPTIMIZER_STATES, Component.MASTER_WEIGHTS, Component.PARAMETERS):
        assert bytes_of(alone, states, Instant.LOAD) == bytes_of(shared, states, Instant.LOAD)


def test_heads_of_keys_are_repeated_where_there_are_fewer_than_ranks() -> None:
    few, as_many = (sheet({**TINY, "num_key_value_heads": heads}) for heads in (1, 4))
    saved = [
        sum(
            item.at[Instant.FORWARD].value
            for item in one.items
            if item.path.endswith(("k_received", "k_heads"))
        )
        for one in (few, as_many)
    ]
    assert saved[0] == saved[1] > 0


@pytest.mark.parametrize(("zero", "width"), [(1, 4), (2, 2 + 4), (3, 2)])
def test_stages_one_and_two_reduce_in_single_precision(zero: int, width: int) -> None:
    """Four bytes of every element of a bucket, beside the two of what is joined where gradients are gone."""
    shared, path = {"cp": 4, "dp_shard": 2, "gpus": "8xH100-80GB", "seq_len": 256}, "zero/reduction_copy"
    held = sheet("llama-3.2-1b", zero=zero, **shared)
    copies = [item.at[Instant.BACKWARD].value for item in held.items if item.path == path]
    assert 0.5 < max(copies, default=0) / (width * 500_000_000) <= 1


@pytest.mark.parametrize(
    ("asked", "config", "words"),
    [
        ({"attention": "eager"}, {}, "with eager attention"),
        ({"seq_len": 2046}, {}, "does not divide 2046 tokens"),
        ({"precision": "fp32"}, {}, "in fp32"),
        ({"cp": 3, "gpus": "3xH100-80GB", "seq_len": 3072}, {}, "does not divide 8 heads"),
        ({"cp": 4}, {"num_key_value_heads": 6, "num_attention_heads": 12}, "neither divides 6 heads of keys"),
        ({"context_parallel_comm": "ring"}, {}, "not modelled for deepspeed"),
        ({"cp": 1}, {}, "is not the mesh's product"),
    ],
)
def test_what_is_refused_there_or_not_modelled_is_refused(
    asked: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        sheet({**TINY, **config}, **asked)


def test_windows_are_not_exchanged() -> None:
    with pytest.raises(InputError, match="masks it leaves out"):
        memsheet.train("gemma-3-1b", **ASKED, fix=False)
