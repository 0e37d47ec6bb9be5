"""A step that is played through the allocator is the step that the sheet is of, and reserves what the real
code's own allocations reserve.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.formulas.replay import steps
from memsheet.formulas.replay.order import THREADS
from memsheet.sheet import Component, Instant

STEP = {"engine": "transformers", "seq_len": 2048, "microbatch": 2, "attention": "sdpa"}
# Models whose tables are tied leave a table of their making behind where they are built on the device, and
# not where they are loaded: those that are recomputed here have two.
STEPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bf16": ("llama-3.2-1b", "1xH100-80GB", {}),
    "autocast": ("llama-3.2-1b", "1xH100-80GB", {"precision": "bf16-autocast"}),
    "recompute": ("olmo-2-1b", "1xH100-80GB", {"recompute.mode": "full"}),
    "micro-batches": ("llama-3.2-1b", "1xH100-80GB", {"global_batch": 8}),
    "sgd": ("llama-3.2-1b", "1xH100-80GB", {"optimizer.name": "sgd"}),
    "adafactor": ("qwen3-0.6b", "1xH100-80GB", {"optimizer.name": "adafactor"}),
    "adapters": ("llama-3.2-1b", "1xH100-80GB", {"adapter.kind": "lora", "adapter.rank": 16}),
    "eager": ("llama-3.2-1b", "1xH100-80GB", {"attention": "eager"}),
    "tied": ("gemma-3-1b", "1xH100-80GB", {}),
    "replicas": ("llama-3.2-1b", "2xH100-80GB", {}),
    "replicas, recompute": ("olmo-2-1b", "2xH100-80GB", {"recompute.mode": "full", "global_batch": 16}),
    "foreach": ("pythia-1b", "1xH100-80GB", {"optimizer.implementation": "foreach"}),
    "fp32, recompute": ("pythia-1b", "1xH100-80GB", {"precision": "fp32", "recompute.mode": "full"}),
    "shards": ("llama-3.2-1b", "4xH100-80GB", {"engine": "fsdp2", "zero": 3}),
}
APART = 0.005
"""Of what the traced step reserves; each allocation is the same but for what kernels ask for inside."""


@pytest.mark.parametrize("name", STEPS)
def test_the_script_of_a_step_has_the_sheets_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = list[int]()
    played = steps.script_of_steps

    def recorded(*given: Any) -> Any:
        script, start = played(*given)
        if given[2] is steps.Lifetimes.RECORDED:
            peaks.append(script.live_peak(start) - THREADS * given[3].workspace)
        return script, start

    monkeypatch.setattr(steps, "script_of_steps", recorded)
    model, gpus, more = STEPS[name]
    sheet = memsheet.train(model, gpus=gpus, plan={**STEP, **more}).sheets[0]
    outside = (Component.ALLOCATOR_SLACK, Component.CONTEXT, Component.WORKSPACES)
    tensors = [component for component in Component if component not in outside]
    most = max(int(sheet.of(*tensors, instant=instant).value) for instant in Instant)
    assert peaks[0] == pytest.approx(most, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_played_step_reserves_what_the_traced_one_does(name: str) -> None:
    model, gpus, more = STEPS[name]
    plan = {**STEP, **more}
    said = memsheet.train(model, gpus=gpus, plan=plan).sheets[0].reserved.value
    traced = memsheet.trace(model, gpus=gpus, plan=plan).sheets[0].reserved.value
    assert said == pytest.approx(int(traced), rel=APART)
