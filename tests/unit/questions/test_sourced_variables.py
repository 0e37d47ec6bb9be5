"""Files of variables that a script takes in and that lie beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.questions.files_on_disk import with_variables_beside


@pytest.mark.parametrize(
    "line",
    [
        "source env.sh",
        'source "$(dirname $0)/env.sh"',
        ". ./env.sh",
        "set -a; source env.sh; set +a",
        "[ -f env.sh ] && . env.sh",
    ],
)
def test_they_stand_in_the_place_of_the_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export MODEL=m\n# no\necho x\nLENGTH=8\n")
    script = f"{line}\nvllm serve $MODEL"
    found, told = with_variables_beside((str(tmp_path / "a.sh"),), {"a.sh": script})
    assert found["a.sh"] == "export MODEL=m\nLENGTH=8\nvllm serve $MODEL"
    assert told == {"a.sh": ("variables of env.sh, which lies beside",)}


def test_the_list_that_is_exported_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MODEL=m\n")
    script = "export $(grep -v '^#' .env | xargs)\nvllm serve $MODEL"
    found, _ = with_variables_beside((str(tmp_path / "a.sh"),), {"a.sh": script})
    assert found["a.sh"].startswith("MODEL=m\n")


@pytest.mark.parametrize("line", ["source activate base", "source /etc/profile", "source ../env.sh"])
def test_nothing_that_lies_elsewhere_is_opened(line: str, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("MODEL=m\n")
    own = tmp_path / "job"
    own.mkdir()
    found, told = with_variables_beside((str(own / "a.sh"),), {"a.sh": f"{line}\n"})
    assert found == {"a.sh": f"{line}\n"}
    assert told == {"a.sh": ()}


@pytest.mark.parametrize("named", ["files", "folder", "script"])
def test_a_file_of_variables_that_is_named_beside_its_script_is_that_scripts(
    named: str, tmp_path: Path
) -> None:
    (tmp_path / "env.sh").write_text("# cards\nexport MODEL=Qwen/Qwen3-8B\nTP=2\n")
    (tmp_path / "a.sh").write_text("source ./env.sh\nvllm serve $MODEL --max-model-len 8192 -tp $TP\n")
    whole = {
        "files": (tmp_path / "a.sh", tmp_path / "env.sh"),
        "folder": (tmp_path,),
        "script": (tmp_path / "a.sh",),
    }
    found = memsheet.check(*whole[named], gpus="2xH100-80GB")
    assert found.answer is not None, found.why_not
    assert (found.answer.model.name, found.answer.plan.mesh.tp) == ("qwen3-8b", 2)


def test_a_file_that_does_more_than_give_values_is_read_for_itself(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("MODEL=m\necho started\n")
    (tmp_path / "a.sh").write_text("source env.sh\nvllm serve Qwen/Qwen3-8B --max-model-len 8192\n")
    with pytest.raises(InputError, match=r"env\.sh"):
        memsheet.check(tmp_path / "a.sh", tmp_path / "env.sh", gpus="1xH100-80GB")
