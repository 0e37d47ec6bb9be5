"""Batch scripts and launches with places that somebody is to fill in: read as not known, and said."""

from __future__ import annotations

import json

import pytest

from memsheet.cli import main

PLACES = ["<N>", "<number of nodes>", "${N}", "$N", "{{nodes}}", "{{ nodes }}", "${N:-}", "<N>  # fill in"]
DIRECTIVES = ["nodes", "gpus-per-node", "gres", "ntasks-per-node"]


def checked(path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict, str]:
    path.write_text(text)
    code = main(["check", str(path), "--model", "llama-tiny", "--seq-len", "64", "--json"])
    found = capsys.readouterr()
    return code, json.loads(found.out), found.err


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("directive", DIRECTIVES)
@pytest.mark.parametrize("between", ["=", " "])
def test_a_directive_that_is_to_be_filled_in_is_not_known(place, directive, between, tmp_path, capsys):
    more = "" if directive == "nodes" else "#SBATCH --nodes=2\n"
    text = (
        f"#!/bin/bash\n{more}#SBATCH --{directive}{between}{place}\nsrun torchrun "
        '--nnodes="$SLURM_JOB_NUM_NODES" train.py\n'
    )
    code, found, _ = checked(tmp_path / "job.sh", text, capsys)
    assert code in (0, 10, 11)
    (file,) = (one for one in found["files"] if one["format"] == "slurm")
    said = [
        line
        for line in (*found["assumed"], *(f"{one['key']}" for one in file["unmodelled"]), *file["ignored"])
        if directive in line
    ]
    assert said
    assert found["starts"]


@pytest.mark.parametrize("place", ["your_own_num_nodes", "N", "two", "2-4"])
def test_nodes_that_are_a_word_or_from_one_number_to_another_are_not_known(place, tmp_path, capsys):
    code, found, _ = checked(
        tmp_path / "job.sh", f"#!/bin/bash\n#SBATCH --nodes={place}\nsrun torchrun train.py\n", capsys
    )
    assert code in (0, 10, 11)
    assert any("#nodes" in line for line in found["assumed"])


@pytest.mark.parametrize("place", [place for place in PLACES if " " not in place and ":-" not in place])
@pytest.mark.parametrize("flag", ["nnodes", "nproc-per-node"])
def test_a_launch_that_is_to_be_filled_in_is_not_known(place, flag, tmp_path, capsys):
    code, found, _ = checked(tmp_path / "run.sh", f'torchrun --{flag}="{place}" train.py\n', capsys)
    assert code in (0, 10, 11)
    assert any(f"--{flag}" in line for line in found["assumed"])


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "2x", "99999999999"])
def test_what_is_no_place_and_no_number_is_refused(value, tmp_path, capsys):
    code, found, _ = checked(
        tmp_path / "job.sh", f"#!/bin/bash\n#SBATCH --nodes={value}\nsrun torchrun train.py\n", capsys
    )
    assert code == 2
    assert found["schema"] == "memsheet/error/1"


TEMPLATE = """base_model: Qwen/Qwen2.5-0.5B
datasets:
- {path: a/b, type: alpaca}
output_dir: {{ out }}/run
sequence_len: SIZE
micro_batch_size: {{ rows | default(2) }}
optimizer: adamw_torch
load_in_4bit: BITS
adapter: lora
lora_r: 8
lora_target_linear: true
bf16: true
"""


def template(**said: str) -> str:
    text = TEMPLATE
    for place in ("SIZE", "BITS"):
        text = text.replace(place, said.get(place, "{{ " + place.lower() + " }}"))
    return text


def test_a_yaml_with_places_of_a_template_is_read_without_them(tmp_path, capsys):
    path = tmp_path / "axo.yaml"
    path.write_text(template(SIZE="1024"))
    code = main(["check", str(path), "--gpus", "1xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 11, "what is nobody's yet leaves a verdict open"
    assert found["sheet"]["plan"]["seq_len"] == 1024
    left = {one["key"] for file in found["files"] for one in file["unmodelled"]}
    assert left == {"micro_batch_size", "load_in_4bit"}


def test_what_a_template_may_still_shrink_is_not_told_not_to_fit(tmp_path, capsys):
    """Of a base that may be loaded in four bits, sixteen are not what it needs at the least."""
    path = tmp_path / "axo.yaml"
    path.write_text(template(SIZE="128").replace("Qwen2.5-0.5B", "Qwen2.5-7B"))
    assert main(["check", str(path), "--gpus", "1xRTX3060-12GB"]) == 11
    capsys.readouterr()
    path.write_text(template(SIZE="128", BITS="false").replace("Qwen2.5-0.5B", "Qwen2.5-7B"))
    assert main(["check", str(path), "--gpus", "1xRTX3060-12GB"]) == 10
    capsys.readouterr()


@pytest.mark.parametrize("place", ["${ROWS}", "<rows>"])
def test_a_size_that_is_the_whole_of_a_place_is_left_out_and_told(place, tmp_path, capsys):
    path = tmp_path / "axo.yaml"
    text = template(SIZE="1024", BITS="false").replace("{{ rows | default(2) }}", f'"{place}"')
    path.write_text(text.replace("{{ out }}", "out"))
    assert main(["check", str(path), "--gpus", "1xH100-80GB", "--json"]) == 11
    found = json.loads(capsys.readouterr().out)
    (left,) = (one for file in found["files"] for one in file["unmodelled"])
    assert left["key"] == "micro_batch_size"
