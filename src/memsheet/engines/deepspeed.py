"""DeepSpeed's ZeRO optimizers around a transformers model: its stages, buffers and defaults (read at one
commit).
"""

from __future__ import annotations

from dataclasses import dataclass

from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.plan import Implementation, OptimizerName
from memsheet.references import TRANSFORMERS
from memsheet.sheet import Cited, Evidence, FromCode

COMMIT = "edaa7221267243c7be7fb49c5d5f5c4fb97b4641"


def _deepspeed_source(file: str, line: int) -> Evidence:
    return FromCode("deepspeedai/DeepSpeed", COMMIT, f"deepspeed/runtime/{file}", line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Sizes of ``zero_optimization`` in elements, with DeepSpeed's own defaults (zero/config.py).

    ``transformers`` writes others where its configuration says "auto": reduce_bucket h², prefetch 0.9 h²,
    persistence 10 h.
    """

    reduce_bucket: int = 500_000_000  # line 113
    prefetch: int = 50_000_000  # line 215
    persistence: int = 100_000  # line 220
    max_live: int = 1_000_000_000  # line 238
    max_reuse: int = 1_000_000_000  # line 243
    sub_group: int = 1_000_000_000  # line 175
    overlap: bool | None = None  # line 138: None is on at stage 3 and off before

    def buffers(self, zero: int) -> int:
        """Fixed buckets of ``reduce_bucket`` elements: stages 1 and 2 fill a second one while the first is
        reduced.
        """
        return 2 if zero in (1, 2) and self.overlap else 1


BUCKETS = Buckets()
ALLREDUCE_BUCKET = 500_000_000
"""Elements that the engine without ZeRO flattens for one all-reduce (engine.py:3691-3702)."""
ALIGNMENT = 2
"""Flat buffers are padded to this many elements a rank (zero/stage_1_and_2.py:347)."""

ENGINE = Engine(
    name="deepspeed",
    tested="0.19.8",
    tasks=("train", "infer"),
    axes=("dp_replicate", "dp_shard"),
    serving_axes=("tp",),
    server="autotp",
    bare_axes=("tp", "pp"),
    zero=(0, 1, 2, 3),
    default_zero=2,
    sharding=Sharding.DEEPSPEED,
    default_precision="bf16-master",
    precisions=("bf16-master", "fp32"),
    autocast=False,
    optimizers=(OptimizerName.ADAMW, OptimizerName.LION),
    default_implementation=Implementation.FUSED,
    adapter_dtype="bf16",  # engine.py:1755-1762: the whole module is cast to the model's dtype
    offload=("optimizer", "parameters", "activations"),
    evidence={
        "activations": Cited(TRANSFORMERS, "modeling files, operation by operation"),
        "parameters": _deepspeed_source("zero/stage_1_and_2.py", 439),
        "parameters at zero 3": _deepspeed_source("zero/partition_parameters.py", 1662),
        "master_weights": _deepspeed_source("zero/stage_1_and_2.py", 492),
        "gradients": _deepspeed_source("zero/stage_1_and_2.py", 1650),
        "gradients at zero 3": _deepspeed_source("zero/stage3.py", 740),
        "optimizer_states": FromCode(
            "deepspeedai/DeepSpeed", COMMIT, "deepspeed/ops/adam/fused_adam.py", 155
        ),
        "communication": _deepspeed_source("zero/stage_1_and_2.py", 2493),
        "communication at zero 3": _deepspeed_source("zero/stage3.py", 730),
        "unsharded_parameters": _deepspeed_source("zero/partitioned_param_coordinator.py", 453),
        "step": _deepspeed_source("zero/stage_1_and_2.py", 2361),
        "offload": _deepspeed_source("zero/offload_config.py", 75),
        "defaults": _deepspeed_source("zero/config.py", 113),
    },
)
