"""What projects' own examples come to, each value read by hand out of the file and the tool's source.
``tests/wild_configs/index.json`` has licence, repository and commit of each.
"""

from __future__ import annotations

import pytest

from memsheet.questions.recognised_files import recognise_files


def test_a_start_that_only_prepares_the_data_is_not_the_job() -> None:
    script = "torchrun open_instruct/olmo_core_finetune.py --model_name_or_path a/b --max_seq_length 512"
    text = f"{script} --cache_dataset_only\n{script} --per_device_train_batch_size 1"
    reads, _ = recognise_files({"run.sh": text}, ())
    assert [read.request["microbatch"] for read in reads.values() if read.form.name == "open-instruct"] == [1]


@pytest.mark.parametrize(("script", "dtype"), [("orpo", "auto"), ("dpo", "float32")])
def test_examples_that_load_the_model_bare_have_it_as_it_is_stored(script: str, dtype: str) -> None:
    command = f"python examples/scripts/{script}.py --model_name_or_path a/b --dtype float32"
    reads, _ = recognise_files({"run.sh": command}, ())
    (read,) = reads.values()
    assert (read.form.name, read.values["dtype"]) == ("trl", dtype)


TORCHTUNE = """model:
  _component_: torchtune.models.llama3.llama3_8b
optimizer:
  _component_: torch.optim.AdamW
checkpointer:
  checkpoint_dir: /tmp/a
batch_size: 2
fsdp_reshard_after_forward: false
"""
MEGATRON = """python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \\
    --max-position-embeddings 64 --micro-batch-size 1 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype bf16
"""


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("8B_full.yaml", TORCHTUNE, ("fsdp_reshard_after_forward", False)),
        ("train.sh", MEGATRON, ("--megatron-fsdp-main-grads-dtype", "bf16")),
    ],
)
def test_what_moves_bytes_and_is_not_held_is_told(name: str, text: str, told: tuple[str, object]) -> None:
    reads, _ = recognise_files({name: text}, ())
    assert told in reads[name].unmodelled
