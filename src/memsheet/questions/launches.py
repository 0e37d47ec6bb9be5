"""The launches that lie in a tree of files: scripts and configurations that name a model or describe one,
each checked with what it refers to. Nothing is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.exchange.servers import servers_in_text
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.named_server import MOST_SERVERS, NamedServer
from memsheet.exchange.shared.plain_shell import plain_scripts
from memsheet.exchange.shared.script_places import NOTEBOOK
from memsheet.guard import is_folder, parse_json, parse_yaml, read_bytes
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.document import PLAN, SHEET
from memsheet.questions.check import check_configuration_files
from memsheet.questions.common_cards import cards_of_launch
from memsheet.questions.files_on_disk import CODE, ENDINGS, NAMED
from memsheet.questions.recognised_files import (
    is_shell,
    recognise_files,
    several_trainings,
    shell_as_plain,
)
from memsheet.questions.shared_cards import with_shared_cards
from memsheet.report.shared.checked import WORST_FIRST, Launch

with late_functions(__name__):
    from memsheet.exchange.shared.notebook import notebook_script


SHELLS = (".sh", ".bash", ".sbatch", ".slurm")
MOST_FILES = 20_000
"""Files of a tree that are looked at by their names."""
MOST_BYTES = 2**18
MOST_BESIDE = 64
"""Files of one folder of which is looked whether some train and some serve."""
MOST_CANDIDATES, MOST_TEXT = 2_000, 2**23
"""Of a tree: files that may be launches, and the letters of all of them, which are parsed."""
DESCRIBES = late_pattern(
    r"model_name_or_path|\bbase_model\b|--model[ =]|model_path|--num-layers|--num_layers|model_id\b"
    r"|from_pretrained|--model-path|^model:\s*\S|^\s*_component_: torchtune\.models|pretrained_model"
    r"|[\"']?hf_model|\bMODEL(_PATH|_NAME)?=|model\.path|checkpoint_dir: checkpoints/|^model_name: \S"
    r"|^ *model_config:\s|tensor_model_parallel_size: "
    r"|(pretrain|finetune)_recipe\(|(-hf|--model-id)[ =]\S|-m \S+\.gguf|\bMODEL_ID\b|model_source"
    r"|^model: *[\"']?\w",
    re.MULTILINE,
)
STARTS = late_pattern(
    r"torchrun|accelerate launch|deepspeed\b|python3? .*\.py|python3?(?: -\S+)* -m"
    r"|(swift|megatron) (sft|pt|rlhf|infer|deploy|rollout|sample|eval)"
    r"|llamafactory-cli|axolotl|tune run|trl (sft|dpo|grpo|kto|reward)|vllm serve|srun"
    r"|vllm\.entrypoints|sglang|llama-server|llama-cli|modelURL|hf://|vllm/vllm-openai"
    r"|trtllm|text-generation-(launcher|inference)|dynamo\.(vllm|sglang|trtllm)"
    r"|model_loading_config|kv_cache_config"
)
"""What a shell's script, or an object of a cluster, holds that starts anything of ours."""
SERVES = late_pattern(
    r"LLMConfig\(|[\"'](vllm|sglang)[\"'],\s*[\"']serve[\"']|sglang\.launch_server|[\"']trtllm-serve[\"']"
    r"|\b(sgl|sglang)\.Engine\(|[\"']vllm\.entrypoints[\w.]*[\"']"
)
"""What a Python script holds that starts a server, wherever in it that stands."""
TRAINS = late_pattern(
    r"Trainer\(|SFTConfig|DPOConfig|GRPOConfig|TrainingArguments|FastLanguageModel|\.backward\(|LLM\(|swift_"
    r"|(pretrain|finetune)_recipe\("
)
"""What a Python script or a notebook holds that trains or serves."""
SERVER = late_pattern(
    r"vllm serve|vllm\.entrypoints|sglang\.launch_server|llama-server|modelURL|text-generation-launcher"
    r"|trtllm-serve|vllm/vllm-openai"
)
"""What a file holds that starts a server, in a folder beside one that trains."""
LEFT_OUT = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "build", "dist"})


def launch_files(files: tuple[str, ...]) -> list[Path]:
    """The launches of a folder that has further ones with scripts or configurations in them, several
    shells that start something, or a training beside a server; none of any other files, which are those of
    one job, as a folder with memsheet's own plan or sheet in it is.
    """
    root = Path(files[0]) if len(files) == 1 else None
    if root is None or not is_folder(root) or any((root / name).is_file() for name in (PLAN, SHEET)):
        return []
    paths = list(_named_paths(root))
    flat = all(path.parent == root for path in paths)
    apart = flat and _trains_and_serves(paths)
    if flat and not apart and sum(path.suffix in SHELLS for path in paths) < 2:
        return []
    found = list(_launches_below(root))
    several = apart or sum(path.suffix in SHELLS for path in found) > 1
    return (
        found
        if several or (not flat and (len(found) > 1 or any(path.parent != root for path in found)))
        else []
    )


def check_launches(
    paths: Sequence[Path], root: Path, question: Mapping[str, Any], words: Mapping[str, Any]
) -> tuple[Launch, ...]:
    """Every launch of a tree, checked by itself on the cards that are named, as many as it starts processes
    where it says so; the worst first.
    """
    found = [_check_launch(path, root, {**question}, words) for path in paths]
    return tuple(sorted(found, key=lambda one: (WORST_FIRST.index(one.outcome), one.file)))


def started_servers(files: tuple[str, ...], as_run: Callable[[str], str] | None = None) -> tuple[str, ...]:
    """The servers that the one file which is named starts, by their names in it, where they are several.
    ``as_run``: of its text the text as it runs.
    """
    path = Path(files[0]) if len(files) == 1 else None
    if path is None or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return ()
    try:
        text = read_bytes(path, MOST_BYTES).decode("utf-8", "replace")
        text = as_run(text) if as_run else text
        found = servers_in_text(path.name, text, parse_yaml)
    except InputError:
        return ()
    names = tuple(one.name for one in found) if len(found) > 1 else ()
    if names or not is_shell(path.name):
        return names
    return _rounds_of_loops(path.name, text) or (() if found else _separate_trainings(path.name, text))


def _separate_trainings(name: str, text: str) -> tuple[str, ...]:
    """The trainings that a script starts one after another, where they are several and differ."""
    try:
        return several_trainings(name, shell_as_plain(name, text).text)
    except InputError:
        return ()


def _rounds_of_loops(name: str, text: str) -> tuple[str, ...]:
    """The values of a script's loops for which it starts different jobs, where they are several; of values
    that change no byte (seeds, rates) the first alone.
    """
    scripts = plain_scripts(text)
    told: dict[str, str] = {}
    for script in scripts if len(scripts) > 1 else ():
        try:
            reads = recognise_files({name: script.text}, ())[0]
        except InputError:
            continue
        told.setdefault(repr([sorted(read.request.items()) for read in reads.values()]), script.name)
    return tuple(told.values()) if len(told) > 1 else ()


def check_servers(
    file: str,
    names: Sequence[str],
    question: Mapping[str, Any],
    words: Mapping[str, Any],
    as_run: Callable[[str], str] | None = None,
) -> tuple[Launch, ...]:
    """Each server of a file, checked by itself on the cards that are named, in the file's order."""
    found = tuple(_check_server(file, name, {**question}, words, as_run) for name in names[:MOST_SERVERS])
    return with_shared_cards(found, _servers_with_cards(file, as_run))


def _servers_with_cards(file: str, as_run: Callable[[str], str] | None) -> Mapping[str, NamedServer]:
    """The servers for which a file names cards by their numbers, by the names of the launches."""
    path = Path(file)
    if not path.is_file():
        return {}
    text = read_bytes(path, MOST_BYTES).decode("utf-8", "replace")
    servers = servers_in_text(path.name, as_run(text) if as_run else text, parse_yaml)
    return {f"{file}: {one.name}": one for one in servers if one.cards}


def _check_server(
    file: str,
    name: str,
    question: dict[str, Any],
    words: Mapping[str, Any],
    as_run: Callable[[str], str] | None,
) -> Launch:
    model = question.pop("model", None)
    try:
        checked = check_configuration_files((file,), model, question, words=words, server=name, as_run=as_run)
    except InputError as error:
        return Launch(file=f"{file}: {name}", checked=None, problem=str(error.problems[0]))
    return Launch(file=f"{file}: {name}", checked=checked)


def _check_launch(path: Path, root: Path, question: dict[str, Any], words: Mapping[str, Any]) -> Launch:
    name = path.relative_to(root).as_posix()
    if question["gpus"]:
        text = read_bytes(path, MOST_BYTES).decode("utf-8", "replace")
        question["gpus"] = cards_of_launch(_recognised(path, text), question["gpus"])
    model = question.pop("model", None)
    try:
        return Launch(
            file=name,
            checked=check_configuration_files((str(path),), model, question, words=words, root=root),
        )
    except InputError as error:
        return Launch(file=name, checked=None, problem=str(error.problems[0]))


def _trains_and_serves(paths: Sequence[Path]) -> bool:
    """Whether one file of a folder starts a server and another one is a script that trains."""
    texts = [read_bytes(path, MOST_BYTES).decode("utf-8", "replace") for path in paths[:MOST_BESIDE]]
    kinds = [(bool(SERVER.search(text)), bool(TRAINS.search(text))) for text in texts]
    return (True, False) in kinds and (False, True) in kinds


def _launches_below(root: Path) -> Iterator[Path]:
    """Files of a tree that name a model or describe one and that no other of them refers to."""
    found, referred = list[Path](), set[str]()
    for path, text in _candidate_texts(root).items():
        reads = _recognised(path, text)
        referred |= {
            Path(held).name
            for read in reads.values()
            for at in read.form.refers
            if isinstance(held := read.values.get(at), str)
        }
        if (path.suffix in SHELLS and reads) or any(read.request.get("@model") for read in reads.values()):
            found.append(path)
    return (path for path in found if path.name not in referred)


def _candidate_texts(root: Path) -> Mapping[Path, str]:
    """Texts that may be launches or configurations. Raises InputError where they are more than a command
    looks at.
    """
    found: dict[Path, str] = {}
    letters = 0
    for path in _named_paths(root):
        text = read_bytes(path, MOST_BYTES).decode("utf-8", "replace")
        if not is_candidate(path.suffix, text):
            continue
        found[path], letters = text, letters + len(text)
        if len(found) > MOST_CANDIDATES or letters > MOST_TEXT:
            most = f"{MOST_CANDIDATES:,} scripts and configurations, or {MOST_TEXT:,} letters of them"
            reason = f"holds more than {most}"
            raise input_error("file", str(root), reason, "a folder of it")
    return found


def _named_paths(root: Path) -> Iterator[Path]:
    """Files whose names may be those of launches, in the order of their folders."""
    endings, seen = (*ENDINGS, *SHELLS, CODE, NOTEBOOK), 0
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in LEFT_OUT)
        seen += len(names)
        if seen > MOST_FILES:
            raise input_error("file", str(root), f"holds more than {MOST_FILES:,} files", "a folder of it")
        for name in sorted(names):
            path = Path(folder, name)
            if (path.suffix in endings or name in NAMED) and _is_small_file(path):
                yield path


def _is_small_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size <= MOST_BYTES


def is_candidate(suffix: str, text: str) -> bool:
    """Whether a text may be a launch or a configuration of a job."""
    if suffix in SHELLS:
        return bool(STARTS.search(text))
    if suffix in (CODE, NOTEBOOK):
        runs = "__main__" in text or not re.search(r"^class |^def ", text, re.MULTILINE)
        return bool(SERVES.search(text)) or (bool(TRAINS.search(text)) and runs)
    if suffix == ".json":
        return bool(re.search(r'"(zero_optimization|model_name_or_path|train_batch_size)"', text))
    if not suffix:
        return True
    words = DESCRIBES.search(text) or STARTS.search(text)
    return bool(words) or "zero_stage" in text or "distributed_type" in text


def _recognised(path: Path, text: str) -> Mapping[str, FileReading]:
    """What a file is read as; nothing where it is none that is known."""
    try:
        script = notebook_script(text, path.name, parse_json) if path.suffix == NOTEBOOK else text
        return recognise_files({path.name: script}, ())[0]
    except InputError:
        return {}
