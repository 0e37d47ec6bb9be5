"""Reserved bytes beside the trace: a step that is played through the allocator's rules, and the allocations
of the real code on fake tensors through the same rules.

    python benchmarks/reserved_agreement.py [--only TEXT …] [--json]

Every row is one step: how far apart allocated and reserved peaks are, whether the traced one lies in the
range, and how many are within 0.1 % and 1 %. ``--only``: rows that hold one of the texts. Nothing is
asserted; it needs the ``trace`` extra and takes some seconds a row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import memsheet
from memsheet.units import GIB

STEPS = """
deepseek-v2-lite 8xH200 engine=fsdp2 seq_len=2048 recompute=full
gemma-2-2b 1xH200 engine=transformers seq_len=2048 recompute=full
gemma-2-2b 1xH200 engine=transformers seq_len=4096 microbatch=2 lora_rank=16
gemma-2-2b 8xH200 engine=fsdp2 seq_len=2048 recompute=full
gemma-2b 8xH100-80GB engine=fsdp2 seq_len=512 global_batch=64 gradient_sync=last
gpt-oss-20b 8xH200 engine=fsdp2 seq_len=2048 recompute=full
llama-2-7b 8xH100-80GB engine=fsdp2 seq_len=2048 offload=optimizer,parameters recompute=full global_batch=16
llama-2-7b 8xH100-80GB engine=fsdp2 seq_len=2048 optimizer=sgd
llama-2-7b 8xH100-80GB engine=fsdp2 seq_len=2048 optimizer=sgd_momentum recompute=full
llama-2-7b 8xH100-80GB engine=fsdp2 seq_len=4096 offload=optimizer,parameters precision=fp32
llama-2-7b 8xH100-80GB engine=fsdp2 seq_len=4096 precision=bf16-pure
llama-2-7b 8xH100-80GB engine=fsdp2 seq_len=4096 zero=2
llama-3-70b 8xA100-80GB engine=fsdp2 seq_len=2048 microbatch=4 recompute=full offload=optimizer,parameters
llama-3.1-8b 8xH100-80GB engine=fsdp2 seq_len=1024 recompute=full
llama-3.1-8b 8xH100-80GB engine=fsdp2 seq_len=1024 recompute=full global_batch=64
llama-3.1-8b 8xH100-80GB engine=fsdp2 seq_len=2048
llama-3.1-8b 8xH100-80GB engine=fsdp2 seq_len=2048 offload=optimizer,parameters lora_rank=16
llama-3.1-8b 8xH200 engine=fsdp2 seq_len=4096 global_batch=64 gradient_sync=last precision=fp32 recompute=full
llama-3.1-8b 8xH200 engine=fsdp2 seq_len=4096 offload=activations recompute=full
llama-3.2-1b 1xH200 engine=transformers seq_len=4096 offload=activations
llama-3.2-1b 4xH100-80GB engine=fsdp2 seq_len=2048 global_batch=16 recompute=full
llama-3.2-1b 4xH100-80GB engine=fsdp2 seq_len=2048 global_batch=16 gradient_sync=last
mistral-7b 8xH100-80GB engine=fsdp2 seq_len=4096 recompute=full global_batch=32
mistral-7b 8xH100-80GB engine=fsdp2 seq_len=4096 recompute=full global_batch=16 gradient_sync=last
mixtral-8x7b 8xH200 engine=fsdp2 seq_len=2048 recompute=full
olmo-2-1b 1xH100-80GB engine=transformers seq_len=2048 attention=eager
olmo-2-1b 1xH100-80GB engine=transformers seq_len=4096 microbatch=2 attention=eager recompute=full
olmo-2-1b 1xH100-80GB engine=transformers seq_len=2048 optimizer=adafactor
olmo-2-1b 8xH100-80GB engine=fsdp2 seq_len=4096 microbatch=2 attention=eager recompute=full global_batch=64
olmoe-1b-7b 8xH100-80GB engine=fsdp2 seq_len=2048
olmoe-1b-7b 8xH100-80GB engine=fsdp2 seq_len=2048 lora_rank=16 global_batch=64
phi-4 8xH200 engine=fsdp2 seq_len=1024 global_batch=16
phi-4 8xH200 engine=fsdp2 seq_len=1024 global_batch=64 gradient_sync=last
phi-4 8xH200 engine=fsdp2 seq_len=8192 recompute=full
pythia-1b 4xH100-80GB engine=fsdp2 seq_len=2048 global_batch=16 gradient_sync=last precision=fp32 recompute=full
pythia-1b 8xH100-80GB engine=fsdp2 seq_len=1024 global_batch=64
qwen2.5-0.5b 4xH100-80GB engine=fsdp2 seq_len=1024 microbatch=2 global_batch=16
qwen2.5-7b 1xH100-80GB engine=transformers seq_len=2048 microbatch=2 lora_rank=16 quantize=nf4
qwen2.5-7b 1xH100-80GB engine=transformers seq_len=2048 lora_rank=16 quantize=nf4 recompute=full global_batch=8
qwen2.5-7b 8xH100-80GB engine=fsdp2 seq_len=2048 lora_rank=16 recompute=full
qwen2.5-7b 8xH200 engine=fsdp2 seq_len=2048 microbatch=2 global_batch=64 gradient_sync=last recompute=full
qwen3-30b-a3b 16xH100-80GB engine=fsdp2 seq_len=2048 recompute=full
qwen3-4b 8xH100-80GB engine=fsdp2 seq_len=2048 lora_rank=16
qwen3-8b 8xH100-80GB engine=fsdp2 seq_len=512 recompute=full
""".strip().splitlines()
"""A model, its cards and what is asked besides, in the words of the command line."""


@dataclass(frozen=True, slots=True)
class Row:
    """``apart``: predicted less traced, as a share of the traced one; bytes of the reserved peak."""

    step: str
    allocated_apart: float
    reserved_apart: float
    traced: int
    low: int
    high: int

    @property
    def inside(self) -> bool:
        return self.low <= self.traced <= self.high


def compare(step: str) -> Row:
    model, gpus, *words = step.split()
    options: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        options[key] = int(value) if value.isdigit() else value
    said, traced = (ask(model, gpus=gpus, **options).sheets[0] for ask in (memsheet.train, memsheet.trace))
    reserved, real = said.reserved, int(traced.reserved.value)
    return Row(
        step,
        said.allocated.value / traced.allocated.value - 1,
        reserved.value / real - 1,
        real,
        int(reserved.low),
        int(reserved.high),
    )


def summary(rows: Sequence[Row]) -> str:
    apart = [abs(row.reserved_apart) for row in rows]
    near, nearer = (sum(one <= bar for one in apart) for bar in (0.01, 0.001))
    return (
        f"{len(rows)} steps: reserved {nearer} within 0.1 %, {near} within 1 %, worst {max(apart):.2%}; "
        f"{sum(row.inside for row in rows)} in the range"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=("",))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = list[Row]()
    for step in STEPS:
        if not any(text in step for text in chosen.only):
            continue
        rows.append(row := compare(step))
        if not chosen.json:
            print(
                f"allocated {row.allocated_apart:+.2%}  reserved {row.reserved_apart:+.2%} of "
                f"{row.traced / GIB:.2f} GiB {'in ' if row.inside else 'OUT'} {step}",
                flush=True,
            )
    print(json.dumps([asdict(row) for row in rows]) if chosen.json else summary(rows) if rows else "no row")


if __name__ == "__main__":
    main()
