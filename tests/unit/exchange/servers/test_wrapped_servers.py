"""Servers behind a script that is not there and that is given their flags: read by these, never sure."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

FLAGS = '--model "$MODEL" --served-model-name mine --max-model-len 4096 --tensor-parallel-size 2'
STARTS = {
    "a list of words": (
        'CMD=(\n  /plugins/vllm_entrypoint.sh\n  --model "$MODEL"\n  --tensor-parallel-size 2\n'
        '  --max-model-len 4096\n)\napptainer exec --rocm "$IMAGE" "${CMD[@]}" > "$LOG" 2>&1 &\n'
    ),
    "in place": f"bash start-vllm.sh {FLAGS}\n",
    "over several lines": f"singularity run image.sif ./run_vllm.sh \\\n  {FLAGS.replace(' --', chr(92) + chr(10) + '  --')}\n",
}  # fmt: skip
DIRECTIVES = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=2\n"
MODEL = "MODEL=Qwen/Qwen2.5-7B-Instruct\nIMAGE=vllm.sif\nLOG=out.log\n"


def checked(text: str, folder: Path, gpus: str) -> memsheet.Checked:
    (folder / "go.sh").write_text(text)
    return memsheet.check(folder / "go.sh", gpus=gpus)


@pytest.mark.parametrize("before", ["", DIRECTIVES])
@pytest.mark.parametrize("start", STARTS)
def test_a_script_that_is_given_a_servers_flags_is_read_by_them(
    start: str, before: str, tmp_path: Path
) -> None:
    found = checked(f"{before}{MODEL}{STARTS[start]}", tmp_path, "2xH100-80GB")
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.mesh.tp) == ("qwen2.5-7b", 2)
    assert found.result is not None
    assert found.result.value == "uncertain"
    assert "hands its flags on" in found.doubt


def test_what_such_a_script_may_add_leaves_open_that_weights_do_not_fit(tmp_path: Path) -> None:
    """It may ask for fewer bits, or for weights in host memory."""
    text = f"{MODEL.replace('7B', '72B')}{STARTS['in place']}"
    results = [checked(text.replace("bash start-vllm.sh", word), tmp_path, "2xRTX3090-24GB").result for word in ("bash start-vllm.sh", "python3 -m vllm.entrypoints.openai.api_server")]  # fmt: skip
    assert [one and one.value for one in results] == ["uncertain", "does_not_fit"]


@pytest.mark.parametrize(
    "start",
    [
        "bash start-vllm.sh\n",
        "bash start-vllm.sh --model $MODEL\n",
        "bash start_server.sh --model $MODEL --tensor-parallel-size 2\n",
    ],
)
def test_a_script_that_may_be_anything_is_no_server(start: str, tmp_path: Path) -> None:
    with pytest.raises(memsheet.InputError):
        checked(f"{MODEL}{start}", tmp_path, "2xH100-80GB")
