"""A cold start stays cold: nothing heavy is imported before a command needs it."""

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import memsheet

HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "numpy",
    "matplotlib",
    "pydantic",
    "fastapi",
    "huggingface_hub",
)

LOADED = (
    f"import json, sys; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), "
    "file=sys.stderr)"
)
IMPORT = f"import memsheet; {LOADED}"
COMMAND = f"""
import runpy, sys
sys.argv = ["memsheet", "models"]
try:
    runpy.run_module("memsheet", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
{LOADED}
"""


def loaded_after(program: str) -> list[str]:
    """The heavy packages that a fresh interpreter holds after ``program``."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


def test_the_probe_sees_a_heavy_import():
    assert loaded_after(f"import numpy; {LOADED}") == ["numpy"]


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after(IMPORT) == []


@pytest.mark.skipif(
    importlib.util.find_spec("memsheet.__main__") is None, reason="the command line is not there yet"
)
def test_a_command_without_torch_loads_nothing_heavy():
    assert loaded_after(COMMAND) == []


SLOW = (
    "argparse",
    "dataclasses",
    "inspect",
    "difflib",
    "importlib.metadata",
    "subprocess",
    "tempfile",
    "shutil",
    "asyncio",
)
"""Modules of Python's own that take longer to load than what a start would use them for."""
OTHERS_WORK = (
    "memsheet.agents", "memsheet.diagnose", "memsheet.measure", "memsheet.report.chart", "memsheet.report.screen",
    "memsheet.run", "memsheet.search", "memsheet.trace", "memsheet.web", "memsheet.readers.hub",
)  # fmt: skip
"""What an answer as JSON to a question that fits needs nothing of."""
ANSWERS = (
    "memsheet.account", "memsheet.budget", "memsheet.engines", "memsheet.exchange", "memsheet.formulas", "memsheet.plan.engine",
    "memsheet.plan.model", "memsheet.plan.plan", "memsheet.readers", "memsheet.resolve", "memsheet.report", "memsheet.allocator",
)  # fmt: skip
"""What answers a question: nothing of it is read to list or to explain."""
NEVER_AT_FIRST = ("ast", "copy", "weakref")
"""What a question that is answered at once has no use for."""
READ_IN_PYTHON = ("hashlib", "base64", "tomllib", "datetime", "threading")
"""What reads tables and numbers there slower than a question is answered."""
RARE_LAYERS = tuple(
    f"memsheet.formulas.model_code.transformers.{name}"
    for name in ("bloom", "delta", "delta_chunks", "falcon", "fused_scan", "gated_attention", "latent", "llama4", "sinks", "split_scan", "state_space", "xielu")
)  # fmt: skip
OTHER_DIVISIONS = (
    *(f"memsheet.formulas.sharding.{name}" for name in ("bare_by_tensor", "distributed_optimizer", "flat_sizes", "partitioned_states", "partitioned_overhead", "whole_matrices")),
    *(f"memsheet.formulas.replay.{name}" for name in ("buffers", "fetched", "flat", "partitioned", "whole")),
)  # fmt: skip
FITS = ("--gpus", "8xH100-80GB", "--json")
LEFT_OUT = {
    ("--help",): (*SLOW, *OTHERS_WORK, *ANSWERS, "json", "pathlib", "tomllib", "memsheet.catalog", "memsheet.guard", "memsheet.sheet"),
    ("models",): (*SLOW, *OTHERS_WORK, *ANSWERS, "tomllib", "memsheet.catalog.names", "memsheet.questions"),
    ("explain", "zero"): (*SLOW, *OTHERS_WORK, *ANSWERS, "pkgutil", "memsheet.textbook", "memsheet.catalog.names"),
    ("infer", "llama-3-8b", *FITS): (
        *SLOW, *OTHERS_WORK, *READ_IN_PYTHON, *RARE_LAYERS, "memsheet.allocator", "memsheet.catalog.names", "memsheet.exchange",
        "memsheet.engines.megatron", "memsheet.formulas.replay", "memsheet.report.page", "memsheet.formulas.step_time", "pathlib", "urllib",
        "memsheet.formulas.model_code.transformers.ends", "memsheet.formulas.model_code.transformers.plan_problems", "memsheet.formulas.sharding",
        *NEVER_AT_FIRST, "memsheet.recording", "memsheet.formulas.adapters", "memsheet.formulas.model_code.recorded", "memsheet.plan.library_defaults",
        *(f"memsheet.formulas.model_code.transformers.{name}" for name in ("experts", "picture_towers", "prefixes", "prompts", "ring")),
    ),
    ("train", "llama-3-8b", "--seq-len", "512", *FITS): (
        *SLOW, *OTHERS_WORK, *READ_IN_PYTHON, *RARE_LAYERS, *OTHER_DIVISIONS, "pathlib", "urllib", "memsheet.catalog.names", "memsheet.exchange",
        "memsheet.engines.megatron", "memsheet.engines.vllm", "memsheet.formulas.serving", "memsheet.report.page", "memsheet.formulas.step_time",
        "memsheet.plan.adapter_targets", "memsheet.plan.library_defaults", *NEVER_AT_FIRST,
        *(f"memsheet.formulas.model_code.transformers.{name}" for name in ("cross_attention", "experts", "picture_towers", "ring")),
    ),
    ("train", "llama3-8b", "--seq-len", "512", *FITS): (*READ_IN_PYTHON, "pathlib", "urllib"),
    ("check", "{file}", "--model", "llama-3-8b", "--seq-len", "512", *FITS): (
        "argparse", "dataclasses", "inspect", "difflib", "importlib.metadata", "subprocess", "tempfile", "secrets", "yaml",
        "memsheet.agents", "memsheet.measure", "memsheet.report.chart", "memsheet.report.screen", "memsheet.run", "memsheet.web",
        "memsheet.report.json.plans", "memsheet.report.page.summaries", "memsheet.search", "memsheet.readers.hub", "memsheet.trace",
    ),
    ("check", "{script}", "--gpus", "1xH100-80GB", "--json"): (
        "argparse", "dataclasses", "inspect", "difflib", "importlib.metadata", "subprocess", "tempfile", "hashlib",
        *OTHERS_WORK, *RARE_LAYERS, "memsheet.formulas.tapes.recorder", "memsheet.formulas.model_code.transformers.blocks",
        "memsheet.formulas.sharding.distributed_optimizer", "memsheet.formulas.replay",
        *(f"memsheet.exchange.formats.{name}" for name in ("accelerate", "axolotl", "llamafactory", "torchtune", "nanotron", "skypilot", "trainjob")),
        *(f"memsheet.exchange.mistakes.{name}" for name in ("megatron", "plans", "zero", "trainer", "shape", "scripts", "loops")),
        *NEVER_AT_FIRST, "memsheet.formulas.tapes", "memsheet.jobs.shorter", "memsheet.plan.adapter_targets", "memsheet.plan.library_defaults",
        *(f"memsheet.exchange.shared.{name}" for name in ("serve_pods", "settings_launches", "shell_loops", "shell_sums", "shell_syntax", "tables_launches")),
        *(f"memsheet.engines.vllm.{name}" for name in ("host_weights", "lora", "lora_buffers", "pictures")),
        *(f"memsheet.questions.{name}" for name in ("sized_models", "without_unmodelled")),
    ),
}  # fmt: skip
"""A command → what it does not load, with all that is inside."""
DEEPSPEED = {
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 1,
}


@pytest.mark.parametrize("command", LEFT_OUT, ids=lambda command: " ".join(command[:2]))
def test_a_command_loads_nothing_of_what_others_do(command: tuple[str, ...], tmp_path: Path) -> None:
    """By modules, not by time: what makes a start slow is what it loads."""
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(DEEPSPEED), encoding="utf-8")
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve meta-llama/Meta-Llama-3-8B --max-model-len 8192\n", encoding="utf-8")
    words = [word.format(file=file, script=script) for word in command]
    loaded = loaded_after(
        "import sys; before = {*sys.modules}\n"
        f"from memsheet.cli import main; code = main({words!r})\n"
        "assert code in (0, 11), code\n"
        "loaded = sorted({*sys.modules} - before)\n"
        "import json; print(json.dumps(loaded), file=sys.stderr)"
    )
    left_out = LEFT_OUT[command]
    assert [
        name for name in loaded if name in left_out or name.startswith(tuple(f"{one}." for one in left_out))
    ] == []


def test_a_bundled_name_loads_no_tables_of_other_names():
    """How copies and Ollama's tags are called is looked up for a name that is none of the bundled."""
    asked = "import memsheet; memsheet.train('llama-tiny', seq_len=8)"
    program = (
        f"{asked}; import json, sys; print(json.dumps([m for m in sys.modules if {{}}]), file=sys.stderr)"
    )
    told = "m.startswith(('memsheet.catalog.name', 'memsheet.catalog.stored', 'memsheet.readers.hub'))"
    assert loaded_after(program.format(told)) == []


SOURCES = Path(memsheet.__file__).parent


def late_imports() -> list[tuple[str, str, str]]:
    """Who imports which function late, of which module."""
    found = []
    for file in sorted(SOURCES.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "late_functions(" not in text:
            continue
        home = ".".join(("memsheet", *file.relative_to(SOURCES).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for block in ast.parse(text).body:
            if isinstance(block, ast.With) and "late_functions(" in ast.unparse(block.items[0]):
                assert ast.unparse(block.items[0]) == "late_functions(__name__)", home
                assert all(isinstance(line, ast.ImportFrom) and not line.level for line in block.body), home
                found += [
                    (home, line.module or "", name.name)
                    for line in block.body
                    if isinstance(line, ast.ImportFrom)
                    for name in line.names
                ]
    return found


def test_what_is_imported_late_is_functions():
    """What else stands there would be compared, or looked into, without being what it is called."""
    imports = late_imports()
    assert imports
    others = [
        (home, module, name)
        for home, module, name in imports
        if not isinstance(getattr(importlib.import_module(module), name), FunctionType)
    ]
    assert others == []


def test_a_late_function_is_the_function_once_it_is_called():
    program = (
        "import json, sys\n"
        "from memsheet.late import late_functions\n"
        "with late_functions(__name__):\n"
        "    from memsheet.units import format_bytes as shown\n"
        "before = 'memsheet.units' in sys.modules\n"
        "said = shown(2**30)\n"
        "from memsheet.units import format_bytes\n"
        "print(json.dumps([before, said, shown is format_bytes]), file=sys.stderr)"
    )
    assert loaded_after(program) == [False, "1.00 GiB", True]
