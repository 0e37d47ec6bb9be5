"""The command line: exit codes, what goes where, errors that say what to do, plans from files and pipes."""

import gc
import json
import os
import shlex
import subprocess
import sys

import pytest

import answers
import memsheet.questions.accounted
from laws import every
from memsheet.cli import main
from memsheet.cli.commands import COMMANDS, MEASURE_FLAGS
from memsheet.cli.error_output import explain_input
from memsheet.cli.flags import PLAN_FLAGS, WORDS
from memsheet.cli.help import START
from memsheet.cli.line import parse_command_line
from memsheet.columns import align_columns
from memsheet.errors import InputError, Problem, input_error
from memsheet.plan.aliases import SHORT_FLAGS
from memsheet.plan.check import RULES
from memsheet.plan.names import SHORT
from memsheet.plan.option_words import HELP
from memsheet.questions.measured import STEPS, VARIED_STEPS
from memsheet.questions.traced import CACHES
from memsheet.questions.verification.ladder import CPU_OPERATIONS
from memsheet.readers.registry import FAMILIES
from memsheet.report.schema.documents import DOCUMENTS, document_model

TWO_SCREENS = 60
TRAIN = ("train", "llama-tiny", "--seq-len", "128")
BIG = ("train", "llama-3-70b", "--gpus", "8xA100-80GB", "--seq-len", "2048")


def run(*arguments, stdin=None, **environment):
    """A fresh process, as a shell starts it."""
    command = [sys.executable, "-m", "memsheet", *arguments]
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def ask(capsys, *arguments):
    code = main(arguments)
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ((*TRAIN, "--gpus", "1xA100-80GB"), 0, "FITS"),
        (BIG, 10, "DOES NOT FIT"),
        (TRAIN, 0, "PREDICTED"),
        (("infer", "llama-tiny", "--max-model-len", "128", "--gpus", "1xA100-80GB"), 0, "FITS"),
    ],
)
def test_the_exit_code_is_the_verdict(capsys, arguments, code, word):
    found, out, err = ask(capsys, *arguments)
    assert (found, err) == (code, "")
    assert out.startswith(word)


def test_uncertain_is_eleven(capsys, monkeypatch):
    capacity = answers.cluster("8xB200").device.framework_bytes
    near = answers.answer(activations=2 + (capacity - 145.37 * 2**30) / 2**30, gpus="8xB200", fix=1)
    monkeypatch.setattr(memsheet.questions.accounted, "train", lambda **_: near)
    monkeypatch.delitem(sys.modules, "memsheet.cli.train", raising=False)
    code, out, _ = ask(capsys, *TRAIN)
    assert code == 11
    assert out.startswith("UNCERTAIN")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train",), ["model", "--parameters 7e9"]),
        (("train", "lama-3-8b", "--seq-len", "8"), ["did you mean llama-3-8b"]),
        (("train", "llama-tiny", "--seq-lem", "8"), ["--seq-lem: is not a flag", "did you mean --seq-len?"]),
        (("train", "llama-tiny", "--seq-len"), ["--seq-len: needs a value"]),
        (("train", "llama-tiny", "--seq-len", "8", "--seq-len", "9"), ["--seq-len"]),
        (("train", "llama-tiny", "other", "--seq-len", "8"), ["other: is left over"]),
        (
            ("train", "llama-tiny", "--tp", "x", "--zero", "9", "--dropout", "lots"),
            ["3 problems", "mesh.tp = x (--tp)", "zero = 9", "dropout"],
        ),
        (("train", "llama-tiny", "--seq-len", "-8"), ["seq_len = -8"]),
        (("train", "llama-tiny", "--seq-len", "8", "--offload", "optimiser"), ["cannot be offloaded"]),
        (("train", "llama-tiny", "--seq-len", "8", "--gpus", "8xH1000"), ["did you mean"]),
        (
            ("train", "llama-tiny", "--seq-len", "8", "--gpus", "8xH100-80GB", "--nodes", "two"),
            ["nodes = two"],
        ),
        (
            ("train", "llama-tiny", "--seq-len", "8", "--gpus", "8xL4", "--host-memory", "80G"),
            ["ambiguous", "80GB"],
        ),
        (
            ("train", "llama-tiny", "--seq-len", "8", "--nodes", "2"),
            ["nodes = 2", "says nothing without GPUs"],
        ),
        (("train", "llama-tiny", "--seq-len", "8", "--units", "PB"), ["units"]),
        (("train", "llama-tiny", "--parameters", "7e9"), ["takes the place of a model"]),
        (("train", "--parameters", "7.5"), ["is not a whole number"]),
        (("train", "--parameters", "1e999999999"), ["is not a whole number"]),
        (("train", "--parameters", "many"), ["is not a number"]),
        (("train", "--plan", "nowhere.json"), ["nowhere.json"]),
        (("trian", "llama-tiny"), ["trian: is not a command", "did you mean train?"]),
        (("explain", "fragmentatoin"), ["is not explained here"]),
        (("models", "nothing-of-that-name"), ["memsheet models"]),
        (("gpus", "abacus"), ["memsheet gpus"]),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_input_is_told_on_stderr_and_is_two(capsys, arguments, said, as_json):
    code, out, err = ask(capsys, *arguments, *(("--json",) if as_json else ()))
    assert code == 2
    assert all(words in err for words in said), err
    assert "Traceback" not in err
    assert bool(out) is as_json
    if as_json:
        check_error_document(out, "bad input", 2)


def check_error_document(out, kind, code):
    assert out.count("\n") == 1
    document = document_model(DOCUMENTS["error"]).model_validate_json(out)
    assert (document.error, document.exit_code) == (kind, code)
    assert document.problems


BAD = {
    "export": ("nowhere.json", "--to", "deepspeed"), "check": ("nowhere.json",), "verify": ("nowhere.json",), "compare": ("a.json", "b.json"),
    "calibrate": ("--from", "nowhere.json"), "plan": ("train", "llama-tiny"), "solve": ("seq-len", "llama-tiny"), "explain": ("no such word at all",),
    "models": ("no such",), "gpus": ("no such",),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("more", [(), ("--no-such-flag",)])
def test_every_command_tells_a_program_what_is_wrong(capsys, name, more):
    code, out, err = ask(capsys, name, *BAD.get(name, ("no-such-model", "--seq-len", "8")), *more, "--json")
    assert code == 2
    check_error_document(out, "bad input", 2)
    for problem in json.loads(out)["problems"]:
        assert problem["reason"] in err
        assert problem["hint"] in err


def test_a_value_of_any_kind_becomes_json(capsys):
    strange = (float("nan"), 10**30, [1], "a" * 9999, b"\x1b[31m", None, True)
    explain_input(
        InputError(Problem(field="f", value=value, reason="is strange") for value in strange), json=True
    )
    shown = [problem["value"] for problem in json.loads(capsys.readouterr().out)["problems"]]
    assert shown[:3] == ["nan", str(10**30), "[1]"]
    assert shown[5:] == [None, True]
    assert all(len(value) <= 120 for value in shown[:5])


def test_debug_shows_the_traceback():
    with pytest.raises(InputError):
        main(("train", "--debug"))


def test_a_fault_of_ours_is_said_to_be_ours(capsys, monkeypatch):
    def fails(**_):
        raise ZeroDivisionError("all is lost")

    monkeypatch.setattr(memsheet.questions.accounted, "train", fails)
    monkeypatch.delitem(sys.modules, "memsheet.cli.train", raising=False)
    code, out, err = ask(capsys, *TRAIN)
    assert (code, out) == (70, "")
    assert "all is lost" in err
    assert "--debug" in err
    code, out, err = ask(capsys, *TRAIN, "--json")
    assert code == 70
    assert "all is lost" in err
    check_error_document(out, "internal error", 70)


def test_an_interrupt_is_quiet(capsys, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(memsheet.questions.accounted, "train", interrupted)
    monkeypatch.delitem(sys.modules, "memsheet.cli.train", raising=False)
    assert ask(capsys, *TRAIN) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (TRAIN, "memsheet/sheet/1"),
        (("infer", "llama-tiny", "--max-model-len", "128"), "memsheet/sheet/1"),
        (("explain", "zero"), "memsheet/explain/1"),
        (("explain",), "memsheet/terms/1"),
        (("models", "gpt2"), "memsheet/models/1"),
        (("gpus",), "memsheet/gpus/1"),
    ],
)
def test_every_command_has_json(capsys, arguments, schema):
    code, out, err = ask(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert json.loads(out)["schema"] == schema


PLAN = {
    "schema": "memsheet/plan/1",
    "model": "llama-tiny",
    "gpus": "8xH100-80GB",
    "engine": "fsdp2",
    "seq_len": 256,
    "microbatch": 4,
    "recompute": {"mode": "full"},
}


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    return str(path)


def plan_of(text):
    return json.loads(text)["plan"]


def test_a_plan_file_may_hold_the_whole_question(capsys, plan_file):
    code, out, _ = ask(capsys, "train", "--plan", plan_file, "--json")
    plan = plan_of(out)
    assert code == 0
    assert (plan["model"], plan["gpus"], plan["microbatch"], plan["recompute"]["mode"]) == (
        "llama-tiny",
        "8xH100-80GB",
        4,
        "full",
    )


def test_flags_override_a_plan_file(capsys, plan_file):
    more = ("--microbatch", "2", "--recompute", "none", "--gpus", "4xA100-80GB")
    plan = plan_of(ask(capsys, "train", "gpt2", "--plan", plan_file, "--json", *more)[1])
    assert (plan["model"], plan["gpus"], plan["microbatch"], plan["recompute"]["mode"]) == (
        "gpt2",
        "4xA100-80GB",
        2,
        "none",
    )
    assert plan["seq_len"] == 256


def test_a_plan_on_a_pipe_and_the_plan_of_a_sheet_come_to_the_same():
    first = run("train", "--plan", "-", "--json", stdin=json.dumps(PLAN))
    assert (first.returncode, first.stderr) == (0, "")
    again = run("train", "--plan", "-", "--json", stdin=json.dumps(plan_of(first.stdout)))
    assert (again.returncode, again.stderr) == (0, "")
    assert json.loads(again.stdout)["ranks"] == json.loads(first.stdout)["ranks"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": NaN}', '{"zero": 1, "zero": 2}', '{"seq_len": 8, "tp": 2}']
)
def test_a_bad_plan_on_a_pipe_is_two(text):
    done = run("train", "llama-tiny", "--plan", "-", stdin=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_flags_that_are_lists_and_switches(capsys, plan_file):
    code, out, err = ask(
        capsys,
        "train",
        "--plan",
        plan_file,
        "--json",
        "--lora-rank",
        "8",
        "--lora-targets",
        "q_proj,v_proj",
        "--no-reshard-after-forward",
    )
    plan = plan_of(out)
    assert (code, err) == (0, "")
    assert plan["adapter"]["targets"] == ["q_proj", "v_proj"]
    assert plan["reshard_after_forward"] is False


def test_offload_takes_a_list(capsys, plan_file):
    plan = plan_of(
        ask(capsys, "train", "--plan", plan_file, "--json", "--offload", "optimizer,parameters")[1]
    )
    assert plan["offload"] == {"optimizer": 1, "parameters": 1, "activations": False}


def test_flags_reach_the_question_as_they_were_written(monkeypatch):
    """Counts and sizes are read where they are needed, exactly: no float on the way."""
    asked = {}
    monkeypatch.setattr(
        memsheet.questions.accounted,
        "train",
        lambda **question: asked.update(question) or answers.answer(gpus=None),
    )
    monkeypatch.delitem(sys.modules, "memsheet.cli.train", raising=False)
    machines = "--gpus 16xH100-80GB --host-memory 1TiB --nodes 2 --per-node 8"
    given = f"--parameters 70553706496 {machines} --layers-per-stage 10,11,11 --dropout 0.1".split()
    assert main(("train", *given, "--json")) == 0
    assert {key: value for key, value in asked.items() if value is not None} == {
        "parameters": "70553706496",
        "gpus": "16xH100-80GB",
        "host_memory": "1TiB",
        "nodes": 2,
        "per_node": 8,
        "layers_per_stage": "10,11,11",
        "dropout": "0.1",
    }


def test_host_memory_is_understood(capsys):
    code, _, err = ask(capsys, *TRAIN, "--gpus", "8xH100-80GB", "--host-memory", "1TiB")
    assert (code, err) == (0, "")


def test_every_plan_option_is_a_flag_with_words():
    assert set(HELP) == set(SHORT)
    assert {flag.field for flag in PLAN_FLAGS} == {*SHORT, "offload"}
    assert all(
        words.endswith((".", "…")) and metavar == metavar.strip() for _, metavar, words in HELP.values()
    )
    assert {name for name, (_, metavar, _) in HELP.items() if not metavar} == {
        name for name in SHORT if RULES[SHORT[name]].kind == "flag"
    }


def test_help_names_the_flags_and_the_commands(capsys):
    for arguments, words in (
        ((), ("train", "infer", "explain", "models", "gpus")),
        (("train", "--help"), ("--seq-len", "--gpus", "--json")),
    ):
        code, out, err = ask(capsys, *arguments)
        assert (code, err) == (0, "")
        assert all(word in out for word in words)


def test_the_version(capsys):
    assert ask(capsys, "--version")[1].strip() == memsheet.__version__


def test_a_reader_that_closes_early_is_no_error():
    command = f"{sys.executable} -m memsheet models | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_a_screen_without_unicode_gets_ascii():
    done = run(*BIG, PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert done.returncode == 10
    assert done.stdout.isascii()
    assert "DOES NOT FIT" in done.stdout


def test_the_json_path_loads_nothing_heavy():
    heavy = ("rich", "pydantic", "numpy", "yaml", "asyncio", "torch", "docstring_parser")
    program = (
        f"import sys, memsheet.cli; memsheet.cli.main({[*BIG, '--json']!r}); print([m for m in "
        f"{heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "[]"


def test_columns_line_up():
    assert align_columns([("a", "bb"), ("ccc", "d")], right=frozenset({1})) == "a    bb\nccc   d\n"


def test_every_bundled_model_is_listed_with_its_count(capsys):
    rows = json.loads(ask(capsys, "models", "--json")[1])["models"]
    assert {row["name"]: row["parameters"] for row in rows}["llama-3-70b"] == 70_553_706_496
    written = [row for row in rows if row["family"] in FAMILIES]
    assert all(0 < row["active_parameters"] <= row["parameters"] for row in written)
    assert all(row["active_parameters"] is None for row in rows if row not in written)


@pytest.mark.slow
def test_every_term_can_be_explained(capsys):
    for entry in json.loads(ask(capsys, "explain", "--json")[1])["terms"]:
        for name in entry["names"]:
            code, out, _ = ask(capsys, "explain", name, "--json")
            found = json.loads(out)
            assert (code, found["kind"], bool(found["text"])) == (0, entry["kind"], True), name


def test_serving_says_what_the_cache_has_room_for(capsys):
    _, out, _ = ask(
        capsys, "infer", "llama-3-8b", "--gpus", "1xA100-80GB", "--max-model-len", "8192", "--sequences", "8"
    )
    assert "A token takes 128.00 KiB of cache" in out
    assert "of 8,192 tokens" in out


def test_states_alone_never_pass_for_a_whole_job(capsys):
    _, out, _ = ask(capsys, "train", "--parameters", "7e9", "--gpus", "8xH100-80GB")
    first = out.splitlines()[0]
    assert "STATES ALONE" in first
    assert "7.00 B parameters" in out


def test_commands_of_one_process_share_no_flags(capsys, monkeypatch):
    """Each line is read by itself, whether it comes from the shell or from a call."""
    lines = (
        ["train", "llama-tiny", "--seq-len", "128", "--json"],
        ["infer", "llama-tiny", "--max-model-len", "64", "--json"],
    )
    for line in (*lines, ["train", "llama-tiny", "--seq-len", "64", "--microbatch", "2", "--json"]):
        monkeypatch.setattr(sys, "argv", ["memsheet", *line])
        assert main() == 0
        shell = capsys.readouterr().out
        assert main(line) == 0
        assert capsys.readouterr().out == shell
        assert json.loads(shell)["plan"]["task"] == line[0]


def test_a_call_leaves_the_collector_as_it_was(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["memsheet", "--version"])
    assert main() == 0
    assert gc.isenabled()
    assert capsys.readouterr().out.strip() == memsheet.__version__


def test_every_unknown_flag_of_a_line_is_told_at_once(capsys):
    code, out, err = ask(
        capsys, "train", "llama-tiny", "--seq-lem", "8", "--grps", "8xL4", "--quantise", "nf4", "--ttft", "1s"
    )
    assert (code, out) == (2, "")
    assert err.startswith("memsheet: 4 problems")
    hints = ("did you mean --seq-len?", "did you mean --gpus?", "did you mean --quantize?", "`memsheet plan`")
    assert all(hint in err for hint in hints), err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_two_screens_and_the_rest_is_asked_for(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    short, long = (ask(capsys, name, flag)[1].splitlines() for flag in ("--help", "--help-all"))
    assert len(short) <= TWO_SCREENS
    assert max(map(len, [*short, *long])) <= 80
    assert "Examples" in short
    words = {word.strip(",") for line in long for word in line.split()}
    for flag in COMMANDS[name].flags:
        assert {f"--{flag.name}", f"--[no-]{flag.name}"} & words, flag.name
    if any(flag.group == WORDS for flag in COMMANDS[name].flags):
        assert {*SHORT_FLAGS} <= words
    assert {*COMMANDS[name].often} <= {flag.name for flag in COMMANDS[name].flags}
    hidden = sum(flag.group != WORDS for flag in COMMANDS[name].flags) - sum(
        line.startswith("  --") for line in short
    )
    assert any(line.startswith(f"{hidden} more flags") and line.endswith("--help-all") for line in short) == (
        hidden > 0
    )


def test_the_help_of_the_program_is_two_screens_too(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(ask(capsys, "--help")[1].splitlines()) <= TWO_SCREENS
    assert all(f"memsheet {name} " in ask(capsys, "--help-all")[1] for name in COMMANDS)


@every("example", sorted({line for command in COMMANDS.values() for line in command.examples} | {*START}))
def test_an_example_can_be_typed(example):
    for part in example.split(" > ")[0].split(" | "):
        program, name, *words = shlex.split(part)
        assert program == "memsheet"
        parse_command_line(COMMANDS[name], words)


def test_numbers_in_the_table_of_flags_are_those_of_the_code():
    words = {
        flag.name: flag for command in ("trace", "measure", "verify") for flag in COMMANDS[command].flags
    }
    assert words["cache"].metavar == "|".join(CACHES)
    assert f"{STEPS}, or {VARIED_STEPS} " in next(
        flag.words for flag in MEASURE_FLAGS if flag.name == "steps"
    )
    assert float(words["operations"].default) == CPU_OPERATIONS


@pytest.mark.parametrize("told", [ImportError, SystemError, ModuleNotFoundError, input_error])
def test_an_interrupt_that_a_package_tells_as_its_own_error_is_one(told, monkeypatch, capsys):
    """An import that is interrupted says that the package is broken."""

    def dispatch(_):
        try:
            raise KeyboardInterrupt  # noqa: TRY301
        except KeyboardInterrupt:
            raise told("numpy", None, "failed to import", "") if told is input_error else told("failed")  # noqa: B904

    monkeypatch.setattr("memsheet.cli._dispatch_command", dispatch)
    assert main(["train", "llama-tiny"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
