"""A notebook is read as the script that its cells make."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from memsheet import check
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange.shared.notebook import marimo_script, notebook_commands, notebook_script
from memsheet.exchange.shared.python_module import syntax_tree
from memsheet.guard import parse_json

SCRIPT = """from trl import SFTConfig, SFTTrainer
args = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4, max_length=512)
trainer = SFTTrainer(model="Qwen/Qwen2.5-7B", args=args, train_dataset=data)
trainer.train()
"""
CELLS = [
    ("markdown", "# SFTConfig(per_device_train_batch_size=64)"),
    ("code", "%%capture\n!pip install trl\nimport os\nif 'COLAB' in os.environ:\n    !pip install x\n"),
    ("code", "%%bash\nnot python at all ("),
    ("code", SCRIPT),
]


def notebook(cells: list[tuple[str, object]]) -> str:
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": kind, "source": text} for kind, text in cells]})


@pytest.mark.parametrize("lines", [False, True])
def test_the_cells_are_one_script_of_python(lines: bool) -> None:
    cells = [(kind, text.splitlines(keepends=True) if lines else text) for kind, text in CELLS]
    made = notebook_script(notebook(cells), "n.ipynb", parse_json)
    ast.parse(made)
    assert "pip" not in ast.unparse(ast.parse(made))
    assert "not python" not in made
    assert "64" not in made


def test_a_notebook_says_what_its_script_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.ipynb").write_text(notebook(CELLS))
    (tmp_path / "a.py").write_text(SCRIPT)
    answers = []
    for name in ("a.ipynb", "a.py"):
        main(["check", str(tmp_path / name), "--gpus", "1xH100-80GB", "--json"])
        answers.append(json.loads(capsys.readouterr().out.replace(name, "file")).get("sheet"))
    assert answers[0] == answers[1] is not None


BROKEN = [
    ("code", '!pip install trl \\\n    "unsloth[colab]==2026.7.4" \\\n    peft\nx = 1'),
    ("code", "from google.colab import"),
    ("code", "just some words"),
    ("code", "  %env A=1 \\\n  b"),
]


def test_a_cell_that_is_no_python_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.ipynb").write_text(notebook([*BROKEN, *CELLS]))
    (tmp_path / "b.ipynb").write_text(notebook(CELLS))
    made = notebook_script((tmp_path / "a.ipynb").read_text(), "a.ipynb", parse_json)
    assert "x = 1" in ast.unparse(ast.parse(made))
    answers = []
    for name in ("a.ipynb", "b.ipynb"):
        main(["check", str(tmp_path / name), "--gpus", "1xH100-80GB", "--json"])
        answers.append(json.loads(capsys.readouterr().out.replace(name, "file")).get("sheet"))
    assert answers[0] == answers[1] is not None


COMMAND = (
    "llamafactory-cli train --stage sft --model_name_or_path Qwen/Qwen2.5-0.5B --do_train true \\\n"
    "  --finetuning_type lora --cutoff_len 512 --template qwen --dataset d --output_dir o --bf16 true"
)


def test_a_training_that_a_cell_starts_in_a_shell_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.ipynb").write_text(notebook([("code", "import os"), ("code", f"!{COMMAND}")]))
    (tmp_path / "a.sh").write_text(COMMAND)
    answers = []
    for name in ("a.ipynb", "a.sh"):
        main(["check", str(tmp_path / name), "--gpus", "1xH100-80GB", "--json"])
        answers.append(json.loads(capsys.readouterr().out.replace(name, "file")).get("sheet"))
    assert answers[0] == answers[1] is not None


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', '{"cells": [1, {"cell_type": "code"}]}'])
def test_what_is_no_notebook_is_refused_or_empty(text: str) -> None:
    try:
        made = notebook_script(text, "n.ipynb", parse_json)
    except InputError:
        return
    assert made.strip() in ("", "None")


@pytest.mark.parametrize("method", ["GRPO", "DPO", "KTO", "Reward", "ORPO", "NashMD", "MiniLLM", "SDPO"])
def test_another_method_of_trl_is_read_and_told(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag's default among its own arguments is no fault. What a method adds is a model of the job, or is
    left out and told; it takes nothing of the states, which are too many here.
    """
    text = SCRIPT.replace("SFTConfig(", f"{method}Config(of_a_method_alone=flags.own, beta=0.1, ").replace(
        "SFT", method
    )
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--own', default=3)\n"
    (tmp_path / "a.py").write_text(parser + "flags = p.parse_args()\n" + text)
    main(["check", str(tmp_path / "a.py"), "--gpus", "1xH100-80GB", "--json"])
    found = json.loads(capsys.readouterr().out)
    left_out = f"script.method {method}" in (found["doubt"] or "")
    assert left_out == (method == "MiniLLM")  # whose teacher is not named
    assert found["result"] == "does_not_fit"
    assert found["starts"]


TRAINS = (
    "!torchrun --nproc-per-node 8 finetune.py --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 True "
    "--per_device_train_batch_size 1 --model_max_length 512 --num_train_epochs 1"
)
ASKS = (
    "from transformers import AutoModelForCausalLM\n"
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-7B')\nmodel.generate(**x)"
)


@pytest.mark.parametrize(
    ("command", "model"), [(TRAINS, "qwen2.5-0.5b"), ("!accelerate launch train.py", "qwen2.5-7b")]
)
def test_what_a_notebooks_commands_train_is_its_job_and_not_what_it_asks_afterwards(
    command: str, model: str, tmp_path: Path
) -> None:
    """A command that says nothing of its model leaves what is asked."""
    cells = [{"cell_type": "code", "source": one, "outputs": []} for one in (command, ASKS)]
    (tmp_path / "tune.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    found = check(tmp_path / "tune.ipynb", gpus="8xA100-80GB")
    assert found.answer is not None, found.why_not
    assert found.answer.model.name == model


@pytest.mark.parametrize(
    ("cells", "command"),
    [
        (
            ['MODEL = "a/b-7B"  # base\nROWS = 4', "!run --model {MODEL} --rows $ROWS"],
            "run --model a/b-7B --rows 4",
        ),
        (['MODEL = "a/b-7B"', "MODEL = merged(MODEL)", "!run --model {MODEL}"], "run --model {MODEL}"),
        (["if big:\n    MODEL = 'a/b-70B'", "!run --model $MODEL"], "run --model $MODEL"),
        (["N = 2", "!run ${N} {n} {'a': 1}"], "run ${N} {n} {'a': 1}"),
        (["!run {MODEL}", 'MODEL = "a/b-7B"'], "run {MODEL}"),
    ],
)
def test_a_command_has_the_plain_values_that_names_have_where_it_runs(cells: list[str], command: str) -> None:
    script = notebook_script(notebook([("code", one) for one in cells]), "a.ipynb", parse_json)
    assert notebook_commands(script).strip() == command


MARIMO_TRAINING = """import marimo

app = marimo.App()


@app.cell
def _():
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    return AutoModelForCausalLM, Trainer, TrainingArguments


@app.cell(hide_code=True)
def _(AutoModelForCausalLM, Trainer, TrainingArguments):
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
    args = TrainingArguments("o", per_device_train_batch_size=2, bf16=True)
    Trainer(model=model, args=args, train_dataset=rows).train()
    return (
        model,
    )


if __name__ == "__main__":
    app.run()
"""


def test_cells_of_marimo_stand_on_their_lines_as_a_script() -> None:
    script = marimo_script(MARIMO_TRAINING)
    told, lines = MARIMO_TRAINING.splitlines(), script.splitlines()
    assert len(lines) == len(told)
    assert lines[7] == told[7].strip()
    assert "return" not in script
    assert marimo_script(script.replace("marimo.App", "other.App")) == script.replace(
        "marimo.App", "other.App"
    )


def test_a_notebook_of_marimo_has_the_sheet_of_its_script(tmp_path: Path) -> None:
    (notebook := tmp_path / "a.py").write_text(MARIMO_TRAINING)
    (script := tmp_path / "b.py").write_text(marimo_script(MARIMO_TRAINING).replace("marimo", "other"))
    found, plain = (check(one, gpus="1xH100-80GB", seq_len=512) for one in (notebook, script))
    assert found.answer is not None, found.why_not
    assert plain.answer is not None
    assert found.answer.sheets == plain.answer.sheets


@pytest.mark.parametrize(
    "line",
    [
        'f"{row["question"]} is asked"',
        "f'{row['question']} is asked'",
        'print(f"{a["b"]}", 1)',
        'x = f"{a["b"]}{c["d"]}"',
    ],
)
def test_places_of_a_text_may_hold_the_quotes_around_it(line: str) -> None:
    tree = syntax_tree(f"a = 1\n{line}\nrows = 8\n")
    assert len(tree.body) == 3
    assert ast.unparse(tree.body[2]) == "rows = 8"
    assert any(isinstance(one, ast.JoinedStr) for one in ast.walk(tree))


def test_what_is_no_python_stays_none() -> None:
    with pytest.raises(ValueError, match="is no Python"):
        syntax_tree('rows = f"{a["b"]"\n')
