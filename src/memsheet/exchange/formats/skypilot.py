"""A task of SkyPilot around ``torchrun``: ``sky launch skypilot.yaml --env TRAIN="train.py …"``; or around a
server's command beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.allocator_env import allocator_conf_rows
from memsheet.exchange.shared.file_format import Format, Key, Values
from memsheet.exchange.shared.serve_command import SCRIPTS, one_node, server_of
from memsheet.patterns import late_pattern
from memsheet.plan.device import parse_gpus

VERSION = "SkyPilot 0.14.1"
SCHEMA = "skypilot-org/skypilot 00052df sky/utils/schemas.py"
DOCS = "docs.skypilot.co running-jobs/distributed-jobs"
ACCELERATORS = {
    "A10": "A10", "A100-40GB": "A100", "A100-80GB": "A100-80GB", "GH200-96GB": "GH200", "H100-80GB": "H100", "H200": "H200", "L4": "L4", "L40S": "L40S",
    "RTXA6000": "A6000", "T4": "T4", "V100-16GB": "V100", "V100-32GB": "V100-32GB",
}  # fmt: skip
"""SkyPilot's names of cards (docs.skypilot.co compute/gpus, ``sky show-gpus -a``)."""
ORDER = ("name", "num_nodes", "resources", "workdir", "envs", "run")
_PLAIN = late_pattern(r"[^A-Za-z0-9-]+")
_CARDS = late_pattern(r"(?!tpu)[A-Za-z][A-Za-z0-9.-]*(?::(\d{1,6}))?", re.IGNORECASE)
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
"""Constant text: nothing of a plan stands in it. TRAIN is the script and its arguments, which the shell
splits and never evaluates.
"""
OWN = frozenset({
    "run", "setup", "workdir", "file_mounts", *(f"resources.{name}" for name in (
        "accelerators", "accelerator_args", "any_of", "ordered", "cloud", "infra", "instance_type", "use_spot", "image_id", "disk_size", "autostop",
    )),
})  # fmt: skip
"""What a task has beside keys that values of charts have, too (``resources``)."""
SERVE = "set -euo pipefail\nbash {script}\n"


def _compose_skypilot_task(values: Values, _: Values) -> str:
    import yaml

    from memsheet.exchange.shared.dotted_places import nest_dotted_keys

    class Block(yaml.SafeDumper):
        """Text of several lines as a block, as people write it."""

    Block.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    tree = nest_dotted_keys(values)
    return yaml.dump({key: tree[key] for key in ORDER if key in tree}, Dumper=Block, sort_keys=False)


def _skypilot_accelerators(asked: Values) -> str | None:
    card = ACCELERATORS.get(_gpu_name(asked))
    return f"{card}:{asked['@per_node']}" if card else None


def _gpu_name(asked: Values) -> str:
    named = asked.get("gpus")
    return parse_gpus(str(named))[1] if named else ""


def _run_section(asked: Values) -> str:
    script = SCRIPTS.get(asked["engine"])
    return SERVE.format(script=script) if script else RUN


def _read_run_section(value: Any, _: Values) -> Mapping[str, Any]:
    """What a task starts: a server's command where its script is run, a job else."""
    serves = any(f"bash {script}" in str(value) for script in SCRIPTS.values())
    return {"task": "infer" if serves else "train"}


def _skypilot_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from one_node(asked)
    if _gpu_name(asked) not in ACCELERATORS:
        known = ", ".join(sorted(ACCELERATORS))
        yield Problem(
            field="gpus",
            value=asked.get("gpus"),
            reason="is no card whose name at SkyPilot is known",
            hint=f"known: {known}; or slurm, torchrun",
        )


def _per_node(value: Any, values: Values) -> Mapping[str, Any]:
    """Cards of a node, ``A100:8`` or ``{A100: 8}``; a choice of several kinds is no count, and is told as a
    problem.
    """
    nodes = values.get("num_nodes", 1)
    if isinstance(value, Mapping) and len(value) == 1:
        ((card, many),) = value.items()
        value = f"{card}:{1 if many is None else many}"
    told = _CARDS.fullmatch(str(value))
    if not told or not isinstance(value, str):
        return {"@per_node": str(value)}
    count = int(told[1] or 1)
    return {"@per_node": count, "@gpus": count * nodes} if isinstance(nodes, int) else {"@per_node": count}


FORMAT = Format(
    name="skypilot", file="skypilot.yaml", kind="yaml", tested=VERSION,
    engines=("transformers", "fsdp2", "fsdp1", "deepspeed", "torchtitan", "megatron", "torchtune", "litgpt", "llm-foundry", "internevo", *SCRIPTS),
    keys=(
        Key(at="name", out=lambda a: _PLAIN.sub("-", str(a.get("@model") or "")).strip("-")[:60].rstrip("-") or "memsheet", back=lambda *_: {},
            source=SCHEMA),
        Key(at="num_nodes", says="@nodes", usual=1, source=DOCS),
        Key(at="resources.accelerators", out=_skypilot_accelerators, back=_per_node, source=DOCS),
        Key(at="run", out=_run_section, back=_read_run_section, source=DOCS),
        *allocator_conf_rows("envs."),
    ),
    fixed=lambda asked: {"workdir": "."} if asked["engine"] in SCRIPTS else {"workdir": ".", "envs.TRAIN": "train.py"},
    marks=frozenset({"num_nodes", "resources", "file_mounts"}), needs_one=OWN, beside=frozenset({"*"}), compose=_compose_skypilot_task, problems=_skypilot_plan_problems, along=server_of,
    known=frozenset({
        "workdir.url", "workdir.ref", "workdir", "setup", "envs", "envs.*", "secrets", "secrets.*", "managed_secrets", "file_mounts.*", "volumes.*",
        "service.*", "pool.*", "config.*", "event_callback", "file_mounts_mapping.*", "volume_mounts", "api_server_access", "inputs.*", "outputs.*",
        *(f"resources.{name}" for name in (
            "cloud", "region", "zone", "infra", "cpus", "memory", "use_spot", "job_recovery", "job_recovery.*", "volumes", "disk_size", "disk_tier",
            "ephemeral_storage", "local_disk", "network_tier", "ports", "image_id", "image_id.*", "labels.*", "autostop", "autostop.*", "priority",
            "priority_class", "max_hourly_cost", "accelerator_args.*", "instance_type",
        )),
    }),  # all of get_task_schema and get_resources_schema, less what is only SkyPilot's own
    whole=frozenset({"resources.accelerators"}), strict=("", "resources", "workdir"),  # additionalProperties: False
    unmodelled={"resources.any_of": (), "resources.ordered": ()},  # another card than the sheet's
)  # fmt: skip
