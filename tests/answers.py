"""Hand-made answers with round figures, for tests of what is printed."""

from __future__ import annotations

from dataclasses import replace

from memsheet import catalog
from memsheet.budget import Answer, Change, Fix, Result, Verdict, budget_of, judge_sheets
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.model import ModelSpec, Source
from memsheet.readers.hf_config import read_hf_config
from memsheet.references import DERIVATIVES, TORCH_FSDP2, ZERO
from memsheet.resolve import resolve_request
from memsheet.sheet import Bytes, Cited, Component, Derived, Evidence, Fitted, Instant, Item, Sheet
from memsheet.units import GIB, MIB

C, T = Component, Instant
STEP = (T.FORWARD, T.LOSS, T.BACKWARD, T.OPTIMIZER_STEP)


def model(name: str = "llama-3-70b") -> ModelSpec:
    found = catalog.find_model(name)
    assert found is not None
    return read_hf_config(found["config"], name=name, source=Source(kind="bundled", path=name))


def cluster(text: str = "8xA100-80GB") -> Cluster:
    count, device = catalog.find_gpus(text)
    assert count is not None
    return cluster_of(device, count)


def item(
    component: Component,
    path: str,
    gib: float,
    *when: Instant,
    evidence: Evidence | None = None,
    spread: float = 0.0,
) -> Item:
    value = int(gib * GIB)
    size = Bytes(int(value * (1 - spread)), value, int(value * (1 + spread)))
    return Item(component, path, dict.fromkeys(when or STEP, size), evidence or Cited(ZERO, "section 3.1"))


def items(*, activations: float) -> tuple[Item, ...]:
    saved = Cited(DERIVATIVES, "what each operation saves for its backward")
    return (
        item(C.PARAMETERS, "model.layers.*.mlp.gate_proj.weight", 26.25),
        item(C.PARAMETERS, "lm_head.weight", 6.6),
        item(C.GRADIENTS, "model.layers.*.mlp.gate_proj.weight", 32.85, T.BACKWARD, T.OPTIMIZER_STEP),
        item(C.OPTIMIZER_STATES, "model.layers.*.mlp.gate_proj.weight", 65.7),
        item(C.INPUTS, "input_ids", 64 * MIB / GIB),
        item(C.SAVED_ACTIVATIONS, "model.layers.*.mlp/act", activations * 0.75, *STEP[:3], evidence=saved),
        item(C.SAVED_ACTIVATIONS, "lm_head/logits", activations * 0.25, T.LOSS, T.BACKWARD, evidence=saved),
        item(C.TEMPORARIES, "lm_head", 3.9, T.LOSS, T.BACKWARD, evidence=saved),
        item(C.UNSHARDED_PARAMETERS, "model.layers.*", 3.2, *STEP[:3], evidence=Cited(TORCH_FSDP2)),
        item(C.COMMUNICATION, "reduce_scatter", 1.6, T.BACKWARD, evidence=Derived("two layers in flight")),
        item(
            C.ALLOCATOR_SLACK,
            "",
            2.0,
            spread=0.5,
            evidence=Fitted("12 simulated steps", "none", "2026-11", "0.5 to 1.5"),
        ),
        item(C.CONTEXT, "", 1.2, spread=0.1, evidence=Fitted("3 records", "A100", "2026-11", "0.1")),
    )


def answer(
    *, activations: float = 160.0, gpus: str | None = "8xA100-80GB", name: str = "llama-3-70b", fix: int = 2
) -> Answer:
    spec, machines = model(name), cluster(gpus) if gpus else None
    request = {"engine": "fsdp2", "seq_len": 2048, "microbatch": 4, "mesh.dp_shard": 8}
    resolved = resolve_request(request, spec, machines)
    held = items(activations=activations)
    if machines is None:
        held = tuple(i for i in held if i.component not in (C.ALLOCATOR_SLACK, C.CONTEXT))
    sheets = (Sheet(rank=0, same_as=tuple(range(1, 8)), items=held),)
    return Answer(
        model=spec,
        parameters=70_553_706_496,
        active_parameters=70_553_706_496,
        plan=resolved.plan,
        assumed=resolved.assumed,
        cluster=machines,
        sheets=sheets,
        verdict=verdict(sheets, machines, fix) if machines else None,
        notes=("expert routing is taken as balanced",),
    )


CHANGES = (
    Change(
        key="recompute.mode",
        before="none",
        after="full",
        before_bytes=300 * GIB,
        after_bytes=160 * GIB,
        words="recompute every layer in backward",
    ),
    Change(
        key="adapter.rank",
        before=None,
        after=16,
        before_bytes=160 * GIB,
        after_bytes=62 * GIB,
        words="train adapters of rank 16",
        needs="another kind of training",
    ),
)


def verdict(sheets: tuple[Sheet, ...], machines: Cluster, fix: int) -> Verdict:
    found = judge_sheets(sheets, budget_of(machines))
    if found.result is Result.FITS or not fix:
        return found
    return replace(found, cheapest_fix=Fix(changes=CHANGES[:fix], device=Bytes.exact(61 * GIB), host_bytes=0))
