"""Stages of unlike sizes in Megatron-LM's flags."""

import itertools
from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.formats.megatron.stages import sizes_of
from memsheet.exchange.plan_files import write_format_files
from memsheet.guard import parse_json, parse_yaml

PARSERS = {"json": parse_json, "yaml": parse_yaml}
FORM = find_format("megatron")
ASKED: dict[str, Any] = {
    "task": "train", "engine": "megatron", "zero": 1, "microbatch": 1, "global_batch": 64, "seq_len": 512, "mesh.dp_shard": 1, "mesh.tp": 2,
    "sequence_parallel": True, "schedule": "1f1b", "precision.parameters": "bf16", "precision.compute": "bf16", "precision.gradients": "fp32",
    "precision.reduce": "fp32", "precision.master_weights": "fp32", "precision.moments": "fp32", "optimizer.name": "adamw",
    "optimizer.implementation": "distributed", "attention": "flash", "loss": "vocab_parallel", "dropout": 0.0, "vocab_multiple": 256, "@gpus": 8,
    "@nodes": 1, "@per_node": 8, "@accumulation": 64, "@model": "m", "recompute.mode": "none",
}  # fmt: skip


def asked(sizes: list[int], parts: int = 1) -> dict[str, Any]:
    stages = len(sizes) // parts
    more = {"mesh.vpp": parts, "schedule": "interleaved"} if parts > 1 else {}
    return {**ASKED, "mesh.pp": stages, "layers_per_stage": sizes, **more}


def built(layers: int, stages: int, first: int | None, last: int | None) -> list[int]:
    """Layers of each stage as Megatron-LM counts them (core/transformer/transformer_block.py:66-137)."""
    left = layers - (first or 0) - (last or 0)
    others = stages - (first is not None) - (last is not None)
    each = left // others if others else 0
    return [
        first if n == 0 and first is not None else last if n == stages - 1 and last is not None else each
        for n in range(stages)
    ]


@pytest.mark.parametrize(
    "sizes", [[7, 9], [5, 9, 9, 9], [9, 9, 9, 5], [7, 9, 9, 7], [6, 9, 9, 8], [15, 1], [1, 30, 1]]
)
def test_unlike_ends_are_written_and_read(sizes: list[int]) -> None:
    text = write_format_files(FORM, asked(sizes))[FORM.file]
    found = read_text("a.sh", text, PARSERS)
    assert (found.unknown, found.unmodelled, found.problems) == ((), (), ())
    assert found.request["layers_per_stage"] == sizes
    values = found.values
    ends = (
        values.get("--decoder-first-pipeline-num-layers"),
        values.get("--decoder-last-pipeline-num-layers"),
    )
    assert built(values["--num-layers"], len(sizes), *ends) == sizes


@pytest.mark.parametrize("sizes", list(itertools.product((2, 3), repeat=4)))
def test_only_what_the_flags_can_say_is_written(sizes: tuple[int, ...]) -> None:
    if len(set(sizes[1:-1])) == 1:
        text = write_format_files(FORM, asked(list(sizes)))[FORM.file]
        request = read_text("a.sh", text, PARSERS).request
        assert request.get("layers_per_stage", [sizes[0]] * 4) == list(sizes)
        assert ("--decoder" in text) is (len(set(sizes)) > 1)
        return
    with pytest.raises(InputError) as refused:
        write_format_files(FORM, asked(list(sizes)))
    assert {problem.field for problem in refused.value.problems} == {"layers_per_stage"}


def test_parts_of_a_stage() -> None:
    sizes = [3, 4, 4, 3, 3, 4, 4, 3]
    text = write_format_files(FORM, asked(sizes, 2))[FORM.file]
    found = read_text("a.sh", text, PARSERS)
    assert found.values["--decoder-first-pipeline-num-layers"] == 6
    assert found.request["layers_per_stage"] == sizes
    assert sizes_of(asked([3, 4, 4, 3, 4, 4, 4, 3], 2)) is None


@pytest.mark.parametrize(
    "flags",
    [
        "--decoder-first-pipeline-num-layers 5", "--num-layers 32 --decoder-first-pipeline-num-layers 6", "--num-layers 32 --decoder-first-pipeline-num-layers 40",
        "--num-layers 32 --decoder-first-pipeline-num-layers 0",
    ],
)  # fmt: skip
def test_what_does_not_come_out_even_is_no_plan(flags: str) -> None:
    text = (
        "torchrun pretrain_gpt.py --pipeline-model-parallel-size 4 --micro-batch-size 1 --seq-length "
        f"512 {flags}\n"
    )
    held = read_text("a.sh", text, PARSERS).request["layers_per_stage"]
    assert isinstance(held, str)


@pytest.mark.parametrize(
    ("length", "cp"), [(512, 2), (510, 2), (508, 2), (512, 1), (511, 1), (516, 4), (520, 4)]
)
def test_a_length_that_context_parallel_ranks_do_not_divide_is_refused(length: int, cp: int) -> None:
    """training/arguments.py of 23e00ed, validate_args: twice the ranks."""
    question = {
        **ASKED,
        "mesh.pp": 1,
        "mesh.cp": cp,
        "seq_len": length,
        "schedule": None,
        **({"context_parallel_comm": "ring"} if cp > 1 else {}),
    }
    question = {key: value for key, value in question.items() if value is not None}
    if cp == 1 or length % (2 * cp) == 0:
        write_format_files(FORM, question)
        return
    with pytest.raises(InputError) as refused:
        write_format_files(FORM, question)
    assert {problem.field for problem in refused.value.problems} == {"seq_len"}


@pytest.mark.parametrize(("layers", "schedule"), [(8, "1f1b"), (4, "interleaved")])
def test_virtual_stages_of_all_layers_of_a_stage_are_one_chunk(layers: int, schedule: str) -> None:
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 "
        f"--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage {layers} --bf16\n"
    )
    request = read_text("a.sh", text, {"json": parse_json, "yaml": parse_yaml}).request
    assert (request["schedule"], request["mesh.vpp"]) == (schedule, 8 // layers)
