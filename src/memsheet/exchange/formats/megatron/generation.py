"""Generation by Megatron-LM: ``torchrun … run_text_generation_server.py`` and its kin, in a script with the
sizes of their model. Weights lie as in training, and a cache is held for a whole batch of whole sequences; no
engine of its own is accounted, and the sheet is of transformers' generation. Lines are of NVIDIA/Megatron-LM
at d98e8a6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.megatron import multimodal
from memsheet.exchange.formats.megatron.described import (
    ELSEWHERE,
    OBJECTIVE,
    OTHER,
    VOCABULARY,
    described_stack,
    left_open_vocabulary,
)
from memsheet.exchange.shared import stand_in_server as beside
from memsheet.exchange.shared.file_format import Format, Key, Values
from memsheet.exchange.shared.megatron_flags import LAUNCHER, PROGRAM, SWITCHES, VALUED, flags_of
from memsheet.patterns import late_pattern

VERSION = "Megatron-LM core 0.14"
ARGS = "megatron/training/arguments.py"
STAND_IN = "transformers"
GENERATES = late_pattern(r"generat|inference|_server\.py")
"""Programs that serve or generate, by their names."""
TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
MARKS = frozenset({"--num-layers", TP})
LENGTH, LONGEST, BATCH, REQUESTS = (
    "--seq-length",
    "--inference-max-seq-length",
    "--micro-batch-size",
    "--inference-max-requests",
)


def _parse_generation(text: str) -> Mapping[str, Any]:
    """The flags of a command whose program generates."""
    found = flags_of(text, MARKS)
    return (
        {**found, beside.ACCOUNTING: "Megatron-LM"} if GENERATES.search(str(found.get(PROGRAM, ""))) else {}
    )


def _described_served(values: Values) -> Mapping[str, Any] | None:
    """The sizes of the flags, which a checkpoint's own may replace (--use-checkpoint-args)."""
    other = any(values.get(at) for at in (*OTHER, *ELSEWHERE))
    return None if other else described_stack(values)


def _read_tensor_cut(value: Any, values: Values) -> Mapping[str, Any]:
    """Cards that a replica lies on: transformers cuts no matrices of such a model, and whole layers on each
    card weigh the same, as do their caches.
    """
    stages = values.get(PP, 1)
    return {
        "mesh.tp": 1,
        "mesh.pp": value * stages if isinstance(value, int) and isinstance(stages, int) else value,
    }


def _read_precision(_: Any, values: Values) -> Mapping[str, Any]:
    """Weights in what they are computed in; fp32 where neither switch is there."""
    said = next((name for name in ("bf16", "fp16") if values.get(f"--{name}") is True), "fp32")
    return {"precision.parameters": said, "serving.kv_dtype": said}


def _read_longest(value: Any, values: Values) -> Mapping[str, Any]:
    """Tokens of a sequence that the cache holds (run_text_generation_server.py:69); those of the prompts are
    ``--seq-length``, or a text's where the model sees.
    """
    said = values.get(LONGEST)
    text = multimodal.read_text_length(values.get(LENGTH), values)["seq_len"]
    return {"serving.max_model_len": next((one for one in (said, text) if isinstance(one, int)), value)}


def _left_to_flags(values: Values) -> Mapping[str, Any]:
    tower = {OBJECTIVE: "is of another program, and the sheet is of a decoder of these sizes"}
    return {**(tower if multimodal.sees(values) else {}), **left_open_vocabulary(values)}


def _generation_row(at: str, says: str = "", **more: Any) -> Key:
    return Key(at=at, says=says, **{"out": lambda _: None, "source": ARGS, **more})


def _read_processes(value: Any, values: Values) -> Mapping[str, Any]:
    nodes = values.get("--nnodes", 1)
    counted = isinstance(value, int) and isinstance(nodes, int)
    return {"@per_node": value, "@gpus": value * nodes} if counted else {}


KEYS = (
    beside.stand_in_row(STAND_IN),
    _generation_row("--nnodes", back=lambda *_: {}, source="torch/distributed/run.py"),
    _generation_row("--nproc-per-node", back=_read_processes, source="torch/distributed/run.py"),
    _generation_row(TP, back=_read_tensor_cut, usual=1),
    _generation_row(PP, back=lambda *_: {}, usual=1),
    _generation_row("--bf16", back=_read_precision, usual=False),
    _generation_row("--fp16", back=lambda *_: {}),
    _generation_row(LONGEST, back=_read_longest, usual=2560, source=f"{ARGS}:2073"),
    _generation_row(BATCH, back=lambda *_: {}),
    _generation_row(
        REQUESTS, back=lambda v, values: {"serving.max_sequences": values.get(BATCH, v)}, usual=8, source=f"{ARGS}:2070"
    ),
)  # fmt: skip
_OF_GENERATION = """
config-path genfile greedy gt-path num-samples num-samples-per-partition num-tokens-to-generate out-seq-length output-path port prompts
return-log-probs sample-input-file sample-output-file task temperature top_k top_p top-k top-p input-image-path partition-id num-partitions
"""
"""What is read, said and drawn (examples/multimodal/run_text_generation.py, generate_samples_gpt.py)."""
UNMODELLED: dict[str, tuple[Any, ...]] = {
    "--use-checkpoint-args": (False,), "--use-mp-args-from-checkpoint-args": (False,), "--heterogeneous-layers-config-path": (),
    "--inference-dynamic-batching": (False,), "--inference-dynamic-batching-buffer-size-gb": (), "--spec": (),
    "--expert-model-parallel-size": (1,), "--fp8-format": (), VOCABULARY: (), OBJECTIVE: (),
}  # fmt: skip
_KNOWN = (
    SWITCHES
    | VALUED
    | LAUNCHER
    | multimodal.KNOWN_FLAGS
    | {"$.*", "--freeze-LM", "--freeze-ViT", *(f"--{one}" for one in _OF_GENERATION.split())}
)

FORMAT = Format(
    name="megatron-generation", file="run_text_generation_server.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, marks=MARKS,
    parse=_parse_generation, said={"task": "infer", "engine": STAND_IN}, absent=_left_to_flags, model=_described_served,
    describes={"--num-layers": "layers", "--hidden-size": "hidden"}, keys_complete=False,
    unmodelled=UNMODELLED, known=_KNOWN - set(UNMODELLED) - {key.at for key in KEYS},
    program_known=lambda _: False,
)  # fmt: skip
