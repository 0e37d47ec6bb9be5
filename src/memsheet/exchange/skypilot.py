"""A task of SkyPilot around ``torchrun``: ``sky launch skypilot.yaml --env TRAIN="train.py …"``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from memsheet.errors import Problem
from memsheet.spec.device import parse_gpus
from memsheet.spec.exchange import Format, Key, Values

VERSION = "SkyPilot's task YAML as docs.skypilot.co has it"
DOCS = "docs.skypilot.co running-jobs/distributed-jobs"
ALLOCATOR, ON = "envs.PYTORCH_ALLOC_CONF", "expandable_segments:True"
ACCELERATORS = {
    "A10": "A10", "A100-40GB": "A100", "A100-80GB": "A100-80GB", "GH200-96GB": "GH200", "H100-80GB": "H100", "H200": "H200", "L4": "L4", "L40S": "L40S",
    "RTXA6000": "A6000", "T4": "T4", "V100-16GB": "V100", "V100-32GB": "V100-32GB",
}  # fmt: skip
"""SkyPilot's names of cards (docs.skypilot.co compute/gpus, ``sky show-gpus -a``)."""
ORDER = ("name", "num_nodes", "resources", "workdir", "envs", "run")
_PLAIN = re.compile(r"[^A-Za-z0-9-]+")
_CARDS = re.compile(r"(?!tpu)[A-Za-z][A-Za-z0-9.-]*(?::(\d{1,6}))?", re.IGNORECASE)
RUN = """set -euo pipefail
first="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"
torchrun \\
  --nnodes="$SKYPILOT_NUM_NODES" \\
  --nproc-per-node="$SKYPILOT_NUM_GPUS_PER_NODE" \\
  --node-rank="$SKYPILOT_NODE_RANK" \\
  --master-addr="$first" \\
  --master-port=29500 \\
  $TRAIN
"""
"""Constant text: nothing of a plan stands in it. TRAIN is the script and its arguments, which the shell splits and never evaluates."""


class _Block(yaml.SafeDumper):
    """Text of several lines as a block, as people write it."""


_Block.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


def _compose(values: Values, _: Values) -> str:
    from memsheet.exchange import nested

    tree = nested(values)
    return yaml.dump({key: tree[key] for key in ORDER if key in tree}, Dumper=_Block, sort_keys=False)


def _accelerators(asked: Values) -> str | None:
    card = ACCELERATORS.get(_card(asked))
    return f"{card}:{asked['@per_node']}" if card else None


def _card(asked: Values) -> str:
    named = asked.get("gpus")
    return parse_gpus(str(named))[1] if named else ""


def _problems(asked: Values) -> Iterator[Problem]:
    if _card(asked) not in ACCELERATORS:
        known = ", ".join(sorted(ACCELERATORS))
        yield Problem(
            field="gpus",
            value=asked.get("gpus"),
            reason="is no card whose name at SkyPilot is known",
            hint=f"known: {known}; or slurm, torchrun",
        )


def _per_node(value: Any, values: Values) -> Mapping[str, Any]:
    """Cards of a node; a choice of several kinds is no count, and is told as a problem."""
    nodes, told = values.get("num_nodes", 1), _CARDS.fullmatch(str(value))
    if not told or not isinstance(value, str):
        return {"@per_node": str(value)}
    count = int(told[1] or 1)
    return {"@per_node": count, "@gpus": count * nodes} if isinstance(nodes, int) else {"@per_node": count}


def _switched(value: Any, _: Values) -> Mapping[str, Any]:
    return {"allocator.expandable_segments": ON.lower() in str(value).replace(" ", "").lower()}


FORMAT = Format(
    name="skypilot", file="skypilot.yaml", kind="yaml", tested=VERSION,
    engines=("transformers", "fsdp2", "fsdp1", "deepspeed", "torchtitan", "megatron", "torchtune", "litgpt", "llm-foundry", "internevo"),
    keys=(
        Key(at="name", out=lambda a: _PLAIN.sub("-", str(a.get("@model") or "")).strip("-")[:60].rstrip("-") or "memsheet", back=lambda *_: {},
            source="docs.skypilot.co reference/yaml-spec"),
        Key(at="num_nodes", says="@nodes", usual=1, source=DOCS),
        Key(at="resources.accelerators", out=_accelerators, back=_per_node, source=DOCS),
        Key(at=ALLOCATOR, out=lambda a: ON if a.get("allocator.expandable_segments") else None, back=_switched, source="torch/cuda/memory.py:1202"),
    ),
    fixed=lambda _: {"workdir": ".", "envs.TRAIN": "train.py", "run": RUN},
    marks=frozenset({"num_nodes", "resources", "file_mounts"}), beside=frozenset({"*"}), compose=_compose, problems=_problems,
    known=frozenset({  # skypilot-org/skypilot 00052df sky/utils/schemas.py, and reference/yaml-spec
        "workdir", "workdir.*", "setup", "run", "envs.*", "secrets.*", "file_mounts.*", "volumes.*", "service.*", "experimental.*", "config.*", "event_callback",
        *(f"resources.{name}" for name in (
            "cloud", "region", "zone", "infra", "cpus", "memory", "instance_type", "use_spot", "job_recovery", "volumes", "disk_size", "disk_tier", "ports",
            "image_id", "labels.*", "autostop", "autostop.*", "job_recovery.*", "network_tier", "priority",
        )),
    }),
    unmodelled={"resources.any_of": (), "resources.ordered": ()},  # another card than the sheet's
    said={"task": "train"},
)  # fmt: skip
