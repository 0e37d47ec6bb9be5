"""Every model type that the installed transformers constructs a default configuration of: who reads it, how
many parameters it has, and what a step of it holds by the sheet and by a trace.

    python benchmarks/families.py [--only WORDS] [--json] [--trace] [--ways train,fsdp2,lora,infer]

Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import memsheet
from memsheet.errors import InputError
from memsheet.readers.registry import FAMILIES

HEADS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES")  # fmt: skip
TOKENS = 1024
WAYS: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "train": (memsheet.train, {"gpus": "1xH200", "seq_len": TOKENS, "microbatch": 2, "precision": "bf16-pure", "fix": False}),
    "fsdp2": (memsheet.train, {"gpus": "8xH200", "seq_len": TOKENS, "microbatch": 2, "engine": "fsdp2", "fix": False}),
    "lora": (memsheet.train, {"gpus": "1xH200", "seq_len": TOKENS, "microbatch": 2, "lora_rank": 16, "fix": False}),
    "infer": (memsheet.infer, {"gpus": "1xH200", "engine": "transformers", "max_model_len": TOKENS, "fix": False}),
}  # fmt: skip


def default_configs() -> dict[str, Mapping[str, Any]]:
    """model_type → its default configuration, of every type for text or for pictures and text."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    names = sorted({name for table in HEADS for name in getattr(modeling_auto, table)})
    found: dict[str, Mapping[str, Any]] = {}
    for name in names:
        try:
            found[name] = {**AutoConfig.for_model(name).to_dict(), "model_type": name}
        except Exception as error:  # noqa: BLE001 - a config that the library itself rejects
            print(f"{name}: {type(error).__name__}", file=sys.stderr)
    return found


def ask(config: Mapping[str, Any], way: str) -> dict[str, Any]:
    """One question about one family: its figures, or why there are none."""
    call, options = WAYS[way]
    start = time.perf_counter()
    try:
        answer = call(dict(config), **options)
    except InputError as error:
        problem = error.problems[0]
        return {"refused": f"{problem.field}: {problem.reason}", "seconds": time.perf_counter() - start}
    except Exception as error:  # noqa: BLE001 - a defect of ours is a row of the table
        return {"refused": f"DEFECT {type(error).__name__}: {error}", "seconds": time.perf_counter() - start}
    return {
        "parameters": answer.parameters,
        "peak": max(int(sheet.allocated.value) for sheet in answer.sheets),
        "seconds": time.perf_counter() - start,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="train")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for name, config in default_configs().items():
        if given.only and name not in given.only.split(","):
            continue
        rows = {way: ask(config, way) for way in given.ways.split(",")}
        by = "reader" if name in FAMILIES else "recording"
        for way, row in rows.items():
            counts[f"{way} {'refused' if 'refused' in row else 'answered'}"] += 1
        if given.json:
            print(json.dumps({"family": name, "by": by, **rows}), flush=True)
        else:
            print(
                f"{name:28} {by:10}",
                *(f"{way}: {row.get('refused') or row['peak']}"[:120] for way, row in rows.items()),
                flush=True,
            )
    print(*(f"{what}: {count}" for what, count in sorted(counts.items())), sep="\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
