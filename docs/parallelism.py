"""concepts/parallelism.md: what each degree of a mesh divides, in numbers of one model."""

# ruff: noqa: INP001

from __future__ import annotations

from typing import Any

import memsheet
from memsheet.budget import Answer
from memsheet.sheet import Component, Sheet
from memsheet.units import GIB

MODEL: dict[str, Any] = {
    "model": "llama-3.1-70b", "gpus": "64xH100-80GB", "engine": "megatron", "seq_len": 8192, "microbatch": 1, "global_batch": 64,
    "tp": 8, "sequence_parallel": True,
}  # fmt: skip
MESHES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tp 8", {"sequence_parallel": False}),
    ("tp 8, sequence parallel", {}),
    ("… and cp 2", {"cp": 2}),
    ("… and cp 4", {"cp": 4}),
    ("… and pp 4", {"pp": 4}),
)
PIPELINES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("1F1B, 4 stages", {"pp": 4}),
    ("interleaved, 4 stages of 5 chunks", {"pp": 4, "vpp": 5, "schedule": "interleaved"}),
    ("1F1B, 8 stages", {"pp": 8}),
)
EXPERTS: dict[str, Any] = {
    "model": "mixtral-8x7b", "gpus": "64xH100-80GB", "engine": "megatron", "seq_len": 4096, "microbatch": 1, "global_batch": 256, "ep": 8,
}  # fmt: skip
STATES = (Component.PARAMETERS, Component.GRADIENTS, Component.MASTER_WEIGHTS, Component.OPTIMIZER_STATES)


def page() -> str:
    """The page's text."""
    experts = memsheet.train(**EXPERTS).sheets[0].allocated
    return TEXT.format(
        meshes="\n".join(_mesh(name, ask(options)) for name, options in MESHES),
        pipelines="\n".join(_stages(name, ask(options)) for name, options in PIPELINES),
        low=_gib(experts.low), value=_gib(experts.value), high=_gib(experts.high),
    )  # fmt: skip


def ask(options: dict[str, Any]) -> Answer:
    """The model's answer on a mesh."""
    return memsheet.train(**{**MODEL, **options})


def states(sheet: Sheet) -> int:
    """Bytes of what stays from step to step."""
    return sheet.of(*STATES, instant=sheet.peak_instant).value


def kept(sheet: Sheet) -> int:
    """Bytes of saved activations at the peak."""
    return sheet.of(Component.SAVED_ACTIVATIONS, instant=sheet.peak_instant).value


def _mesh(name: str, answer: Answer) -> str:
    sheet, verdict = (
        max(answer.sheets, key=lambda s: s.allocated.value),
        answer.verdict.result.value.replace("_", " "),
    )
    return f"| {name} | {_gib(states(sheet))} | {_gib(kept(sheet))} | {_gib(sheet.allocated.value)} | {verdict} |"


def _stages(name: str, answer: Answer) -> str:
    sheets = answer.sheets
    return f"| {name} | {' · '.join(_gib(kept(s)) for s in sheets)} | {' · '.join(_gib(s.allocated.value) for s in sheets)} |"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


TEXT = """<!-- made by docs/generate.py from docs/parallelism.py -->

# Parallelism

Every degree of a mesh divides something and leaves something whole. What it leaves whole is what jobs die of.

## What each degree divides

Llama-3.1-70B under Megatron on 64 H100, 8,192 tokens, micro-batches of one, in GiB on the fullest rank:

| mesh | states | saved activations | allocated | verdict |
|---|---|---|---|---|
{meshes}

- **tp** divides matrices, and activations inside attention and feed-forward. Norms, residuals and dropout stay whole on every rank.
- **sequence_parallel** divides those along the sequence too, over the same ranks: it costs no memory and no more traffic. Megatron leaves it
  off unless asked, and so does memsheet.
- **cp** divides the sequence, and with it everything saved; parameters and gradients stay whole, and optimizer states are dealt over
  dp · cp ranks. Keys and values travel: around a ring, in an all-gather, or by heads in an all-to-all (`--context-parallel-comm`).
- **pp** divides layers, and so states; a stage keeps several micro-batches at once, so what is saved hardly falls (below).
- **dp_shard** divides optimizer states (zero 1), gradients (zero 2) and parameters (zero 3). Megatron's distributed optimizer is zero 1 with
  fp32 gradients whole on every rank: 4 bytes a parameter that no amount of data parallelism divides.
- **ep** divides experts. Their states have a data-parallel group of their own, dp · cp · tp / (ep · etp) ranks, smaller than that of the rest.

## Pipelines: each stage is another sheet

A micro-batch's activations stay until its backward comes by. Saved activations, then all allocated bytes, in GiB for stages from first to last:

| schedule | saved activations | allocated |
|---|---|---|
{pipelines}

With 1F1B, stage *s* of *p* holds p - s micro-batches: the first stage's layers are 1/p of the model and are there p times, as many bytes as
with no pipeline at all. More stages buy room for states only. Interleaving shortens the bubble and costs memory on every stage, the
last ones most. The embeddings weigh on the first stage; logits and the loss on the last, of one micro-batch. memsheet accounts for every distinct
rank and judges by the fullest; `layers_per_stage` makes stages uneven.

One process that has several cards (`device_map="auto"`) is no such pipeline: cards work one after another, no micro-batch waits, and each holds
its layers with their states. `--schedule naive` accounts it, layers dealt as transformers deals them.

## Experts: a range, because nobody knows the routing

How many tokens an expert gets is decided while the job runs. The buffers behind a dispatch are as long as what arrives, so the sheet
says three sizes, here for Mixtral-8x7B over ep 8 and 64 H100:

| routing | allocated, GiB |
|---|---|
| every expert gets its even share (low) | {low} |
| expected of tokens that choose at random (value) | {value} |
| every token of the expert group chooses this rank's experts (high) | {high} |

`--moe-balanced` says that a router is forced to balance, as benchmarks often do, and `--moe-capacity-factor` bounds it. The all-gather
dispatcher receives every token of its group whatever they choose.
"""
