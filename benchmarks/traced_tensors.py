"""Tensors that traced steps of models' own code allocate, as data for ``benchmarks/tensor_names.py``.

    python benchmarks/traced_tensors.py FILE [SET]      the cases of a set (mending, wider, unseen)

Each is kept once: its shape, dtype and bytes, the module and the operation that make it, and the last frames
of the traceback that torch would have printed there, without ours.
"""

from __future__ import annotations

import inspect
import json
import linecache
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from tensor_truths import BYTES, LEAST

import memsheet
from memsheet.catalog import find_model
from memsheet.errors import InputError

FRAMES, TENSORS = 6, 120
"""Frames that are kept of a traceback, tensors of a case."""
OURS = (
    "memsheet", "torch/_ops.py", "torch/_compile.py", "torch/utils/_python_dispatch", "torch/_subclasses", "torch/_dynamo",
    "torch/_higher_order_ops", "traced_tensors.py",
)  # fmt: skip
"""What stands in a traced step's stack alone."""
DENSE = (
    "llama-3.1-8b",
    "qwen2.5-7b",
    "mistral-7b",
    "gemma-2-9b",
    "phi-2",
    "gpt2-xl",
    "falcon-7b",
    "bert-large",
    "qwen2-1.5b",
)
SPARSE = (
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "gpt-oss-20b",
    "qwen2.5-vl-7b",
    "falcon-h1-3b",
    "qwen3-next-80b-a3b",
)
WIDER = (
    "qwen2.5-0.5b", "gemma-2b", "phi-3-mini", "gpt-j-6b", "opt-1.3b", "bloom-3b", "falcon3-7b", "qwen1.5-moe-a2.7b",
    "exaone-4.0-32b", "ernie-4.5-21b-a3b", "glm-4-9b", "t5-large", "olmo-1b", "deberta-v3-large", "xlm-roberta-large", "kimi-linear-48b-a3b",
)  # fmt: skip
UNSEEN = (
    "llama-3.2-3b", "qwen3-14b", "gemma-3-12b", "olmo-2-7b", "starcoder2-7b", "pythia-6.9b", "roberta-large", "granite-3.1-8b",
    "phi-3.5-moe", "olmoe-1b-7b", "glm-4.7-flash", "granite-4.0-h-tiny", "nemotron-h-8b", "smollm2-1.7b", "modernbert-base",
    "bloom-7b1", "mistral-nemo-12b", "lfm2-2.6b",
)  # fmt: skip
SETTINGS: tuple[dict[str, Any], ...] = (
    {"seq_len": 4096, "microbatch": 2, "precision": "bf16-pure"},
    {"seq_len": 2048, "microbatch": 8, "precision": "bf16-autocast"},
    {"seq_len": 1024, "microbatch": 16, "precision": "bf16-pure", "attention": "eager"},
    {"seq_len": 3072, "microbatch": 4, "precision": "bf16-pure", "lora_rank": 16, "recompute": "full"},
    {"seq_len": 8192, "microbatch": 1, "precision": "fsdp2-mixed", "engine": "fsdp2", "gpus": "8xH100-80GB", "zero": 3},
    {"seq_len": 512, "microbatch": 24, "precision": "bf16-autocast", "engine": "transformers", "zero": 0, "gpus": "4xH100-80GB"},
    {"seq_len": 2048, "microbatch": 4, "precision": "bf16-pure", "lora_rank": 32, "quantize": "nf4", "recompute": "full"},
)  # fmt: skip
OTHER_SETTINGS: tuple[dict[str, Any], ...] = (
    {"seq_len": 8192, "microbatch": 1, "precision": "bf16-pure"},
    {"seq_len": 1536, "microbatch": 6, "precision": "bf16-autocast"},
    {"seq_len": 768, "microbatch": 12, "precision": "bf16-pure", "attention": "eager"},
    {"seq_len": 5000, "microbatch": 2, "precision": "bf16-pure", "lora_rank": 64, "recompute": "full"},
    {"seq_len": 4096, "microbatch": 3, "precision": "fsdp2-mixed", "engine": "fsdp2", "gpus": "16xH100-80GB", "zero": 3},
    {"seq_len": 512, "microbatch": 40, "precision": "bf16-autocast", "engine": "transformers", "zero": 0, "gpus": "8xH100-80GB"},
    {"seq_len": 2000, "microbatch": 5, "precision": "bf16-pure", "lora_rank": 8, "quantize": "nf4", "recompute": "full"},
)  # fmt: skip
ENCODERS = ("bert", "roberta", "gpt2", "bge", "deberta", "xlm-roberta", "t5")
"""Models that take no more than 512 (or 1,024) positions."""


def cases_of(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Model and options of each case of a set, each model with two of the settings in turn."""
    models = {"mending": (*DENSE, *SPARSE), "wider": WIDER, "unseen": UNSEEN}[name]
    settings = OTHER_SETTINGS if name == "unseen" else SETTINGS
    for number, model in enumerate(models):
        for step in (0, 3):
            words = dict(settings[(number + step + number // len(settings)) % len(settings)])
            if model.startswith(ENCODERS):
                words["microbatch"] *= max(1, words["seq_len"] // 512)
                words["seq_len"] = min(words["seq_len"], 512)
            yield model, words


def traced_tensors(model: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """One case, traced. Raises InputError for what is not traced."""
    from memsheet.plan.engine import Runner
    from memsheet.plan.engine_registry import engine_of
    from memsheet.trace import distributed_job, job
    from memsheet.trace.fold import depth_of

    made: list[dict[str, Any]] = []

    class Watching(job.Recorder):
        """A recorder that keeps shapes and frames, too."""

        def _notice(self, tensor: Any, op: str) -> None:
            before = len(self.rows)
            super()._notice(tensor, op)
            if len(self.rows) > before and self.rows[-1].bytes >= LEAST:
                local = getattr(tensor, "_local_tensor", getattr(tensor, "elem", tensor))
                instant = self.instant.value if self.instant else "load"
                made.append({
                    "row": self.rows[-1], "shape": list(local.shape), "dtype": str(local.dtype).removeprefix("torch."),
                    "op": op, "instant": instant, "frames": _stack_of(inspect.currentframe()),
                })  # fmt: skip

    answer = memsheet.train(model, **words)
    config, plan = dict(find_model(model)["config"]), answer.plan
    stack = answer.model.stacks[-1]
    job.Recorder = Watching  # type: ignore[misc]
    how = job.How(scratch=False)
    ranks = plan.mesh.gpus > 1 or engine_of(plan).runner is Runner.SHARDED_UNITS
    depth = depth_of(stack)
    try:
        if ranks:
            distributed_job.trace_rank(config, plan, how, 0, depth)
        else:
            job.trace_training(config, plan, how, depth)
    finally:
        job.Recorder = Watching.__bases__[0]  # type: ignore[misc]
    kept: dict[str, dict[str, Any]] = {}
    for each in made:
        row = each.pop("row")
        if row.bytes != math.prod(each["shape"]) * BYTES.get(each["dtype"], 0):
            continue
        each |= {"bytes": row.bytes, "module": row.path or row.owner, "component": row.component.value}
        key = json.dumps([each["shape"], each["dtype"], each["op"], each["instant"], each["frames"][-1:]])
        kept.setdefault(key, each)
    step = -(-len(kept) // TENSORS) or 1
    return {
        "model": model,
        "options": dict(words),
        "tensors": list(kept.values())[::step],
    }


def _stack_of(frame: FrameType | None) -> list[list[Any]]:
    """File, line, function and code of the innermost frames, the innermost last."""
    found: list[list[Any]] = []
    while frame is not None and len(found) < FRAMES:
        file = frame.f_code.co_filename
        if not any(part in file for part in OURS) and not file.startswith("<"):
            name = file.partition("site-packages/")[2] or file.rpartition("/")[2]
            code = linecache.getline(file, frame.f_lineno).strip()
            found.append([name, frame.f_lineno, frame.f_code.co_name, code])
        frame = frame.f_back
    return found[::-1]


def main(arguments: list[str]) -> None:
    file, *rest = arguments
    found = json.loads(Path(file).read_text()) if Path(file).exists() else []
    for model, words in cases_of(rest[0] if rest else "mending"):
        if any(each["model"] == model and each["options"] == words for each in found):
            continue
        start = time.perf_counter()
        try:
            case = traced_tensors(model, words)
        except (ImportError, InputError, RuntimeError) as error:  # said, and the next one taken
            print(f"{model} {words}: {str(error)[:160]}", flush=True)
            continue
        found.append(case)
        print(
            f"{model} {words}: {len(case['tensors'])} tensors, {time.perf_counter() - start:.1f} s",
            flush=True,
        )
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
