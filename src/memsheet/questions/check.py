"""What an engine's configuration comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from memsheet import api
from memsheet.budget import Answer, Result, budget_of
from memsheet.errors import InputError, Problem, refuse, require
from memsheet.exchange import DTYPE_UNKNOWN, MOST_SCRIPT, as_released, as_stored, in_sixteen_bits
from memsheet.exchange.doubts import (
    FURTHER,
    Doubt,
    another_model,
    both_doubts,
    doubted,
    least_of,
    left_open,
    left_to_script,
    says_sequences_alone,
    stand_in,
    stored_as,
)  # fmt: skip
from memsheet.exchange.lint import Case, Found, Rule, lint
from memsheet.exchange.together import together, with_their_files
from memsheet.guard import MAX_JSON_BYTES, is_file, is_folder, read_bytes, read_json
from memsheet.questions.export import PLAN, SHEET, picked
from memsheet.questions.recognised_files import of_folders, recognised, unasked
from memsheet.report.answer import public_answer
from memsheet.report.checked import Checked
from memsheet.spec.check import flatten
from memsheet.spec.device import parse_gpus
from memsheet.spec.exchange import AUTO, Moved, Read, Together
from memsheet.spec.model import ModelSpec
from memsheet.spec.of_the_script import absent_files
from memsheet.spec.options import InferOptions
from memsheet.spec.trainer_script import UNSAID
from memsheet.spec.values import option_problems
from memsheet.spec.words import accumulated, in_our_words

MAX_FILES = 64
MOST_BYTES = 2**20
"""Of all files of a job but memsheet's own: configurations are a few KiB each, and one that is much larger is something else."""
ENDINGS = (".json", ".yaml", ".yml", ".toml", ".sh", ".sbatch", ".slurm")
CODE = ".py"
MACHINES = ("gpus", "nodes", "per_node", "host_memory", "cluster", "parameters", "plan")
DRAFT = "speculative.model"
NOTHING: Mapping[str, Any] = {}
NOT_MODELLED = "the files set what the sheet does not hold"


def check(*files: str | PathLike[str], model: str | None = None, **options: Unpack[InferOptions]) -> Checked:
    """What an engine's configuration files come to: ``answer`` (a sheet and a verdict), ``mistakes``, what they leave open.

    ``files``: those of one job, or the folder that holds them; ``model``: the one that is trained or served, where no file names it.
    Keywords as for ``memsheet.train``, ``gpus`` among them, say what the files leave open. Raises InputError for what cannot be read.
    """
    require(option_problems(options))
    asked = {**dict.fromkeys(MACHINES), **options}
    question = {key: asked.pop(key) for key in MACHINES}
    question["plan"] = api.plan_document_of(question["plan"]) or None
    require(Problem(field="file", value=file, reason="is no name of a file") for file in files if not isinstance(file, str | PathLike))
    checked = checking(tuple(map(str, files)), model, question, words=asked)
    return replace(checked, answer=public_answer(checked.answer)) if checked.answer else checked


def read_flags(given: Mapping[str, Any], gpus: Any, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Options in words of either task, whichever knows them all, as the engine that the files are of (``planned``) has them: what runs is theirs to
    say.
    """
    try:
        found = in_our_words(given, "train", planned)
    except InputError as error:
        try:
            found = in_our_words(given, "infer", planned)
        except InputError:
            raise error from None
    return accumulated(found.request, parse_gpus(str(gpus))[0] if gpus else None)[0]


def checking(
    files: tuple[str, ...], model: str | None, question: dict[str, Any], flags: Mapping[str, Any] = NOTHING, words: Mapping[str, Any] = NOTHING
) -> Checked:  # fmt: skip
    """The files read together, accounted and looked over. ``flags``: what is said beside them, as keys of a plan; ``words``: as people say it.
    Raises InputError for what cannot be read at all.
    """
    if question["parameters"] is not None:
        raise refuse("parameters", question["parameters"], "says nothing of a file's activations", "name the model: --model")
    texts, document = gathered(files, question.pop("plan", None))
    too_large = tuple(f"{path.name}: a script of {path.stat().st_size:,} bytes: name it to have it read" for path in _large_scripts(files))
    folder = of_folders(files, texts)
    reads, skipped = recognised(texts, folder)
    if beside := _beside(files, texts, reads):
        texts |= beside
        reads, skipped = recognised(texts, folder)
    reads = with_their_files(reads)
    texts = {**dict.fromkeys(reads, ""), **texts}
    reads = {name: _bundled(read) for name, read in reads.items()}
    where = {key: question[key] for key in ("nodes", "per_node", "host_memory", "cluster")}
    request = {key: value for key, value in flatten(document).items() if value is not None and key not in ("schema", "model", "gpus")}
    flags = {**flags, **read_flags(words, question["gpus"], _said_of_engine(reads, request))}
    reads = {name: _of_release(read, flags, request) for name, read in reads.items()}
    name = model or document.get("model") or _named(reads)
    reads = {read_name: _stored(read, name) for read_name, read in reads.items()}
    gpus = question["gpus"] or _cards(document.get("gpus"), reads)
    require(problem for read in reads.values() for problem in read.problems)
    whole = together(reads, request, flags, parse_gpus(str(gpus))[0] if gpus else None)
    ask = {**where, "gpus": gpus, "model": name}
    strange = _strange(reads, {**request, **flags})
    answer, why_not = (None, strange) if name is None or strange else _answered(ask, whole.request)
    if answer and not gpus and (ranks := _data_parallel(answer, whole)):
        counted = f"{whole.gpus} GPUs, as many as the files start processes: --gpus names the card"
        whole = replace(whole, request={**whole.request, **ranks}, assumed=(counted, *whole.assumed))
        answer, why_not = _answered(ask, whole.request)
    spec = answer.model if answer else _model(name)
    case = Case(
        reads=reads, texts=texts, together=whole, answer=answer, model=spec, bundled=_bundled_name,
        ask=_once(lambda changes: _changed(ask, {**whole.request, **_length_taken(answer)}, changes)),
    )  # fmt: skip
    mistakes = lint(case)
    moved = (*_moved(reads, answer), *_beyond(mistakes))
    left = tuple(f"{read_name}: {text}" for read_name, read in reads.items() for text in read.assumed)
    doubt = _doubt(reads, answer, moved, flags, case)
    if answer and answer.verdict:
        unsaid = left_to_script(whole.script, whole.request, answer, case.ask)
        if answer.verdict.result is not Result.DOES_NOT_FIT or _may_fit(answer, unsaid):
            doubt = both_doubts(doubt, unsaid)
    mistakes = tuple((rule, _claimed(found, moved, flags, case)) for rule, found in mistakes)
    return Checked(
        reads=reads, answer=doubted(answer, doubt), why_not=why_not, assumed=(*left, *whole.assumed), mistakes=mistakes, moved=moved,
        doubt=doubt.words, not_read=(*skipped, *too_large), no_model="" if name else _unnamed(reads), on_cards=bool(gpus),
    )  # fmt: skip


def _said_of_engine(reads: Mapping[str, Read], planned: Mapping[str, Any]) -> dict[str, Any]:
    """The engine and its sharding as the files say them, the plan among them: a word beside them means what it does there."""
    said = [planned, *({key: read.request[key] for key in read.request.keys() - read.unsaid} for read in reads.values())]
    return {key: value for one in said for key in ("engine", "zero") if (value := one.get(key)) is not None}


def gathered(files: tuple[str, ...], plan: Any) -> tuple[dict[str, str], Mapping[str, Any]]:
    """The texts of files by name, and the plan among them: memsheet's own, which a folder may hold, or the one a flag names."""
    if not files:
        raise refuse("file", None, "is missing", "memsheet check ds_config.json --model llama-3.1-8b --gpus 8xA100-80GB --seq-len 4096")
    paths = [path for file in files for path in paths_of(Path(file))]
    if len(paths) > MAX_FILES:
        raise refuse("file", len(paths), f"are more than {MAX_FILES} files")
    check_total_bytes(paths)
    texts: dict[str, str] = {}
    for path in paths:
        try:
            text = read_bytes(path, MAX_JSON_BYTES).decode()
        except UnicodeDecodeError:
            raise refuse("file", str(path), "is not text in UTF-8") from None
        if path.suffix == ".json" and '"memsheet/' in text[:200]:
            if path.name != SHEET or plan is None:
                plan = plan or picked(read_json(path), None)
            continue
        texts[path.name if len(files) == 1 else str(path)] = text
    return texts, plan or {}


def check_total_bytes(paths: Iterable[Path]) -> None:
    """Refuse more than a command reads, before any of it is read."""
    total = sum(path.stat().st_size for path in paths if is_file(path) and path.name not in (PLAN, SHEET))
    if total > MOST_BYTES:
        raise refuse("file", None, f"are {total:,} bytes together, more than the {MOST_BYTES:,} that are read", "name the job's own files")


def _beside(files: tuple[str, ...], texts: Mapping[str, str], reads: Mapping[str, Read]) -> dict[str, str]:
    """Texts of the files that others name and that lie beside them, in the same folder or below it: nothing else is opened."""
    folders = [path if is_folder(path) else path.parent for path in map(Path, files)]
    found: dict[str, str] = {}
    for name in absent_files(reads):
        for path in (held for folder in folders for held in (folder / name, folder / Path(name).name)):
            if not is_file(path) or str(path) in texts:  # a name that no file can have has no place either
                continue
            if any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
                found[str(path)] = read_bytes(path, MOST_BYTES).decode(errors="replace")
                break
    return found


def paths_of(path: Path) -> list[Path]:
    """A file, or a folder's files of the endings that configurations have, the plan first."""
    if not is_folder(path):
        return [path]
    found = sorted(held for held in path.iterdir() if held.suffix in (*ENDINGS, CODE) and held.is_file())
    if not found:
        raise refuse("file", str(path), "is a folder without configurations", f"files that end in {', '.join(ENDINGS)}")
    found = sorted(found, key=lambda held: (held.name != PLAN, held.suffix == CODE))
    configurations = sum(held.suffix != CODE for held in found)
    small = [held for held in found if not _is_large_script(held)]
    return small[: max(MAX_FILES // 2, configurations)]  # so much code that it is never more than a command reads


def _large_scripts(files: tuple[str, ...]) -> list[Path]:
    """Code of folders that is left aside unless it is named: a folder's is read as far as a command reads."""
    folders = [Path(file) for file in files if is_folder(Path(file))]
    return [held for folder in folders for held in sorted(folder.iterdir()) if held.is_file() and _is_large_script(held)]


def _is_large_script(path: Path) -> bool:
    return path.suffix == CODE and path.stat().st_size > MOST_SCRIPT // 4


def _cards(named: Any, reads: Mapping[str, Read]) -> str | None:
    """The cards of a plan, as many as the files start processes."""
    counts = [read.request["@gpus"] for read in reads.values() if isinstance(read.request.get("@gpus"), int)]
    if not named or not counts:
        return str(named) if named else None
    return f"{counts[-1]}x{parse_gpus(str(named))[1]}"


def _named(reads: Mapping[str, Read]) -> str | None:
    """The model that a server's command names, where it is a bundled one: no path in a stranger's file is opened."""
    from memsheet.catalog import find_model

    named = _served(reads)
    return named if named and find_model(named) else None


def _bundled(read: Read) -> Read:
    """The file with who drafts by the bundled name, where it is one of those."""
    from memsheet.catalog import find_model

    found = find_model(str(read.request.get(DRAFT) or ""))
    return replace(read, request={**read.request, DRAFT: found["name"]}) if found else read


def _bundled_name(served: str) -> str | None:
    from memsheet.catalog import find_model

    found = find_model(served) if served else None
    return str(found["name"]) if found else None


def _strange(reads: Mapping[str, Read], told: Mapping[str, Any]) -> tuple[str, ...]:
    """Why there is no sheet: a stranger's file names who drafts by a path or a hub's name, which nobody looks up for it."""
    from memsheet.catalog import find_model

    named = [str(read.request[DRAFT]) for read in reads.values() if read.request.get(DRAFT)]
    unknown = [name for name in named if told.get(DRAFT) is None and not find_model(name)]
    return tuple(f"{name} drafts and is no bundled model, so there is no sheet: --draft-model" for name in unknown[:1])


def _served(reads: Mapping[str, Read]) -> str | None:
    return next((str(read.request["@model"]) for read in reads.values() if read.request.get("@model")), None)


def _unnamed(reads: Mapping[str, Read]) -> str:
    served = _served(reads)
    if not served:
        return "no model is named: --model"
    return f"{served} is no bundled model: {stand_in(served, _bundled_name) or '--model names one, or its config.json'}"


def _of_release(read: Read, flags: Mapping[str, Any], planned: Mapping[str, Any]) -> Read:
    """The file as the engine's release has it: a flag's before the file's own, which is before the plan's beside it."""
    return as_released(read, flags.get("engine_version") or read.request.get("engine_version") or planned.get("engine_version"))


def _stored(read: Read, name: str | None) -> Read:
    """The file with the dtype that the model's checkpoint has, where it takes that."""
    model = _model(name) if read.values.get(read.form.stored) in (AUTO, UNSAID) else None
    known = model is not None and (model.dtype or not model.quantization)  # one that is stored quantized computes in bf16
    return as_stored(read, model.dtype if model and known else "bfloat16")


def _answered(ask: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[Answer | None, tuple[str, ...]]:
    """The answer, or why there is none."""
    try:
        return _train(ask, request, fix=True), ()
    except InputError as error:
        return None, tuple(str(problem).replace("\n  ", "; ") for problem in error.problems)


def _data_parallel(answer: Answer, whole: Together) -> dict[str, int]:
    """The degree that the ranks which the files start leave to data parallelism, where no card is named that would be counted."""
    mesh, count = answer.plan.mesh, whole.gpus or 1
    ranks = mesh.dp_replicate * mesh.dp_shard * mesh.cp * mesh.tp * mesh.pp
    axis = "mesh.dp_shard" if answer.plan.zero else "mesh.dp_replicate"
    if answer.plan.task != "train" or count <= ranks or count % ranks or whole.request.get(axis) is not None:
        return {}
    return {axis: count // ranks}


def _model(name: Any) -> ModelSpec | None:
    """The model of a job that is no plan as it stands."""
    from memsheet.catalog import model_names
    from memsheet.readers.model import read_model

    return read_model(name, catalog=api.catalogued, names=model_names()) if name else None


def _changed(ask: Mapping[str, Any], request: Mapping[str, Any], changes: Mapping[str, Any]) -> Answer | None:
    """The answer to the plan with some keys changed, None where that is no plan."""
    if ask["model"] is None:
        return None
    try:
        return _train(ask, {**request, **changes}, fix=False)
    except InputError:
        return None


def _length_taken(answer: Answer | None) -> dict[str, int]:
    """The length that the sheet took of several where nobody said one: what a change frees is told at the same."""
    return {"seq_len": int(answer.plan.seq_len)} if answer and answer.ladder and answer.plan.seq_len else {}


def _once(ask: Callable[[Mapping[str, Any]], Answer | None]) -> Callable[[Mapping[str, Any]], Answer | None]:
    """The answer to each change, accounted once: a rule asks whether it fits, and then what it frees."""
    known: dict[str, Answer | None] = {}

    def asked(changes: Mapping[str, Any]) -> Answer | None:
        key = repr(sorted(changes.items(), key=lambda change: change[0]))
        if key not in known:
            known[key] = ask(changes)
        return known[key]

    return asked


def _train(ask: Mapping[str, Any], request: Mapping[str, Any], *, fix: bool) -> Answer:
    document: dict[str, Any] = {}
    for key, value in request.items():
        group, dot, inner = key.partition(".")
        if key == "precision.name" and value is not None:
            document["precision"] = value
        elif value is not None and not (dot and isinstance(document.get(group), str)):
            document.setdefault(group, {})[inner] = value if dot else None
            if not dot:
                document[group] = value
    asks = api.infer if document.get("task") == "infer" else api.train
    return asks(**ask, plan=document, fix=fix)


def _moved(reads: Mapping[str, Read], answer: Answer | None) -> tuple[Moved, ...]:
    if answer is None:
        return ()
    micro = int(answer.plan.microbatch) * int(answer.plan.seq_len or 0)
    sizes = {
        "@hidden": answer.model.hidden,
        "@vocab": answer.model.vocab,
        "@tokens": micro,
        "@loss": answer.plan.loss.value,
        "@layers": sum(stack.layers for stack in answer.model.stacks),
    }
    asked = {**sizes, "precision.gradients": answer.plan.precision.gradients.name}
    return tuple(moved for read in reads.values() if read.form.moves for moved in read.form.moves(read.values, asked))


def _may_fit(answer: Answer, doubt: Doubt) -> bool:
    """Whether what is open may need so much less than a sheet that does not fit that it does."""
    return bool(doubt.words) and answer.cluster is not None and doubt.least_bytes <= budget_of(answer.cluster).high_bytes


def _claimed(found: Found, moved: tuple[Moved, ...], given: Mapping[str, Any], case: Case) -> Found:
    """A finding with what is known of the fit of the plan that it speaks of: where files hold more than the sheet, that of the sheet alone."""
    other = case.ask(found.other) if found.fits else None
    if other is None or other.verdict is None:
        return found.claimed(sure=False)
    doubt = _doubt(case.reads, other, moved, given, replace(case, answer=other))
    return found.claimed(sure=other.verdict.result is Result.FITS and not doubt.words)


def _beyond(mistakes: tuple[tuple[Rule, Found], ...]) -> tuple[Moved, ...]:
    """Bytes of mistakes that come on top of the sheet."""
    return tuple(
        Moved(at=found.where, why=rule.id, low_bytes=0, high_bytes=found.saves_bytes)
        for rule, found in mistakes
        if found.beyond and found.saves_bytes
    )


def _described(read: Read, answer: Answer | None) -> Iterator[tuple[str, int]]:
    """Sizes of the model that a file says and that are not the sheet's."""
    if answer is None:
        return
    own = {"layers": sum(stack.layers for stack in answer.model.stacks), "hidden": answer.model.hidden}
    for at, size in read.form.describes.items():
        if read.values.get(at) not in (None, own[size]):
            yield at, own[size]


def _doubt(
    reads: Mapping[str, Read], answer: Answer | None, moved: tuple[Moved, ...], given: Mapping[str, Any], case: Case,
) -> Doubt:  # fmt: skip
    """Why the sheet's verdict does not hold for these files: what nobody accounts, or buckets that do not fit into what is free."""
    verdict = answer.verdict if answer else None
    if answer is None or verdict is None:
        return Doubt("")
    fewer, unsure = _at_fewest(answer, case)
    least = int(fewer.verdict.device.low) if fewer.verdict else 0
    if stranger := another_model(_served(reads), _model(_named(reads)), answer):
        return Doubt(stranger, _least_as_stored(_served(reads) or "", stranger, answer, case.ask))
    other = [f"{at} {read.values[at]}, and the model has {own}" for read in reads.values() for at, own in _described(read, answer)]
    if apart := [*_other_nodes(reads, answer)]:
        return Doubt("; ".join(apart), least)
    if other:
        return Doubt(f"the files are of another model: {'; '.join(other)}", least)
    if absent := absent_files(reads):
        return Doubt(f"{absent[0]} is named and is not among the files: name it on the command line, too")
    named = [one for read in reads.values() for one in left_open(read, given, verdict.result)]
    if named:
        keys = (one.partition(" ")[0] for one in named if not one.startswith(FURTHER))
        more_need_more = says_sequences_alone(reads.values(), named) and int(answer.plan.microbatch) == 1
        words = _not_held(reads, named) + "; the range is of one sequence, and more need more" * more_need_more
        return Doubt(words, least if more_need_more else least_of(fewer, keys))
    if verdict.result is not Result.FITS and unsure:
        return Doubt(DTYPE_UNKNOWN, least)
    more, less = sum(one.high_bytes for one in moved), sum(one.low_bytes for one in moved)
    room = answer.cluster.device.framework_low_bytes if answer.cluster else 0
    if verdict.result is Result.FITS and int(verdict.device.high) + more > room:
        return Doubt(f"with {', '.join(one.at for one in moved if one.high_bytes > 0)} it may need more than a GPU has", least)
    if less and verdict.result is Result.DOES_NOT_FIT and int(verdict.device.low) + less <= room:
        return Doubt(f"with {', '.join(one.at for one in moved if one.low_bytes < 0)} it may fit", least + less)
    return Doubt("")


def _at_fewest(answer: Answer, case: Case) -> tuple[Answer, bool]:
    """The answer with weights of unknown dtype in sixteen bits, where the request takes them of a file; whether there are any."""
    changes = {key: held for read in case.reads.values() for key, held in in_sixteen_bits(read).items() if key in case.request}
    return (case.ask(changes) or answer, True) if changes else (answer, False)


def _other_nodes(reads: Mapping[str, Read], answer: Answer) -> Iterator[str]:
    """A server's command for another number of nodes than the cluster has."""
    for read in reads.values():
        said = read.values.get("--nnodes")
        if read.request.get("task") == "infer" and answer.cluster and isinstance(said, int) and said != answer.cluster.nodes:
            yield f"the command is for {said} nodes, and the cluster has {answer.cluster.nodes}"


def _least_as_stored(served: str, words: str, answer: Answer, ask: Callable[[Mapping[str, Any]], Answer | None]) -> int:
    """The least of the sheet's model, in the format that the served one's name says if that is what the doubt is of."""
    form = stored_as(served)
    asked = ask({"quantization.weights": form}) if form and form in words else answer
    return int(asked.verdict.device.low) if asked and asked.verdict else 0


def _not_held(reads: Mapping[str, Read], named: list[str]) -> str:
    """What the sheet does not hold, in words: what the files say, and what the engine does where they say nothing."""
    alone = [one for one in named if any(one.startswith(f"{at} ") for read in reads.values() for at in unasked(read))]
    said = f"{NOT_MODELLED}: {', '.join(one for one in named if one not in alone)}" if len(named) > len(alone) else ""
    unsaid = (
        f"the engine does by itself, as the files do not say otherwise, what the sheet does not hold: {', '.join(alone)}" if alone else ""
    )
    return "; ".join(filter(None, (said, unsaid)))
