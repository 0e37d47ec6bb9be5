"""What ``memsheet check --json`` prints agrees with its published schema: every format, with a sheet and
without one.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.questions.check import check_configuration_files
from memsheet.report.json.checked import checked_document
from memsheet.report.shared.json_text import dump_json_line

WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
}
DS = json.dumps(
    {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 10**9},
    }
)
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "ds_config.json": (DS, {}),
    "accelerate.yaml": (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\n",
        {},
    ),
    "args.yaml": ("per_device_train_batch_size: 1\nbf16: true\ntorch_compile: true\nsurprise: 1\n", {}),
    "slurm.sh": ("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\nsrun torchrun train.py\n", {}),
    "titan.toml": ("[training]\nlocal_batch_size = 1\nseq_len = 512\n[parallelism]\n", {}),
    "serve.sh": ("vllm serve llama-3.2-1b --max-model-len 4096\n", {}),
    "pretrain.sh": (
        (
            "torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size 1 --seq-length 512 "
            "--bf16\n"
        ),
        {},
    ),
}


def document(folder: Path, name: str, text: str, model: str | None, gpus: str | None) -> dict[str, Any]:
    (folder / name).write_text(text)
    length = {} if name in ("titan.toml", "serve.sh", "pretrain.sh") else {"seq_len": 512}
    found = checked_document(
        check_configuration_files((str(folder / name),), model, {**WHERE, "gpus": gpus}, length)
    )
    back: dict[str, Any] = json.loads(dump_json_line(found))
    return back


@pytest.mark.parametrize("model", [None, "llama-3.2-1b", "llama-3-70b"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_printed_agrees_with_its_schema(name: str, model: str | None, tmp_path: Path) -> None:
    schema = pytest.importorskip("memsheet.report.schema.documents")
    made = document(tmp_path, name, FILES[name][0], model, "8xA100-80GB" if model else None)
    schema.document_model(schema.Checked).model_validate_json(dump_json_line(made))
    assert made["sheet"] is not None or made["result"] is None


def test_another_key_or_kind_does_not_agree(tmp_path: Path) -> None:
    schema = pytest.importorskip("memsheet.report.schema.documents")
    made = document(tmp_path, "args.yaml", FILES["args.yaml"][0], "llama-3.2-1b", "8xA100-80GB")
    assert made["mistakes"]
    for wrong in (
        {"more": 1},
        {"starts": 1.5},
        {"mistakes": [{**made["mistakes"][0], "source": None}]},
        {"result": "perhaps"},
    ):
        with pytest.raises(ValueError, match=r"."):
            schema.document_model(schema.Checked).model_validate_json(dump_json_line({**made, **wrong}))
