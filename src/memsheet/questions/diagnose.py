"""What a job that died of memory died of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from memsheet.budget import Answer, Change, Result
from memsheet.catalog import find_gpus
from memsheet.diagnose.candidates import Axes
from memsheet.diagnose.cleaned import MOST_BYTES
from memsheet.diagnose.log_programs import SERVERS
from memsheet.diagnose.message import YES, Cause, Cure
from memsheet.diagnose.named_cards import NamedCard
from memsheet.diagnose.printed import held_beside, printed_beside
from memsheet.diagnose.redacted import redact_diagnosis
from memsheet.diagnose.snapshot.failure import is_failure, read_failure
from memsheet.diagnose.snapshot.findings import SnapshotFacts, held_of
from memsheet.diagnose.snapshot.history import is_snapshot, read_history
from memsheet.diagnose.verdict import Diagnosis, cured_first, diagnose_texts
from memsheet.diagnose.with_snapshots import diagnose_held, recompute_notes
from memsheet.errors import InputError, input_error
from memsheet.frozen import replace
from memsheet.guard import read_bytes, read_stdin
from memsheet.guard.pickled import read_pickle
from memsheet.guard.spending import of_one_command
from memsheet.patterns import late_pattern
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.options import InferOptions, Model
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.plan.workload import Training
from memsheet.questions import accounted
from memsheet.questions.typed_texts import is_typed
from memsheet.report.answer import public_answer

MOST_FILES = 64
_NAMES_FILE = late_pattern(r"[\\/]|\.\w{1,5}$")
"""How a word looks that names a file, though none is there."""
TEXT = "text"
Said = str | bytes | SnapshotFacts
"""A text, or what a snapshot shows."""
CONFIGURATIONS = (".yml", ".yaml", ".json", ".toml", ".sh", ".py")
"""How files end that say what ran."""
OF_SERVERS = (Cause.ENGINE_OVERCOMMIT, Cause.ENGINE_UNDERPROVISION)
"""Causes that only a server dies of."""
SERVED = ("max_model_len", "sequences", "memory_fraction", "users")
"""Options that only a server's question has."""


def diagnose(
    *texts: str | bytes | PathLike[str],
    model: Model | None = None,
    redact: bool = False,
    **options: Unpack[InferOptions],
) -> Diagnosis:
    """What a job died of, from its message, its log, an nvidia-smi table: each of ``texts`` is a text, or a
    path (``pathlib.Path``) of one; all are of one job, in order.

    With ``model`` and the options of ``train`` or ``infer`` the sheet of that plan says which term it was,
    and changes are accounted. ``redact``: without folders, people and machines. Raises InputError
    where nothing can be read, or the plan cannot be.
    """
    named: dict[str, Said] = {}
    with of_one_command():
        for number, text in enumerate(texts, start=1):
            if isinstance(text, str | bytes):
                named[TEXT if len(texts) == 1 else f"{TEXT} {number}"] = text
            else:
                named[str(text)] = _read_file(Path(text))
    found = diagnose_named_texts(named, model, options)
    if redact:
        found = redacted_diagnosis(found, named)
    return replace(found, answer=public_answer(found.answer)) if found.answer else found


def redacted_diagnosis(found: Diagnosis, texts: Mapping[str, Said]) -> Diagnosis:
    """What can be shown to others of a diagnosis of these texts."""
    import platform

    return redact_diagnosis(
        found,
        (*texts, *(text for text in texts.values() if not isinstance(text, SnapshotFacts))),
        (platform.node(),),
    )


def _read_file(path: Path) -> bytes | SnapshotFacts:
    """A file's bytes; of a pickle what it shows, so that one at a time is in memory."""
    pickled = read_pickle(path)
    return read_bytes(path, MOST_BYTES) if pickled is None else held_of(read_history(pickled, str(path)))


def read_log_files(files: tuple[str, ...]) -> dict[str, Said]:
    """Files by name, ``-`` being stdin, and messages that are typed in the place of one. Raises InputError
    for none, too many or too much of them.
    """
    if not files:
        raise input_error(
            "FILE",
            None,
            "is missing: a log or an error message",
            "memsheet diagnose train.log, or - for stdin",
        )
    if len(files) > MOST_FILES:
        raise input_error("FILE", len(files), f"are more than {MOST_FILES} files")
    typed = [name for name in dict.fromkeys(files) if is_typed(name) or _is_message(name)]
    messages = {f"message {at}" if at > 1 else "message": text for at, text in enumerate(typed, start=1)}
    named = {
        name: read_stdin("log", MOST_BYTES) if name == "-" else _read_file(Path(name))
        for name in dict.fromkeys(files)
        if name not in typed
    }
    return {**messages, **named}


def _is_message(word: str) -> bool:
    """Whether one word in the place of a file that does not exist says that memory ran out: ``Killed``."""
    missing = word != "-" and not _NAMES_FILE.search(word) and not Path(word).exists()
    return missing and diagnose_texts({TEXT: word}).found


def with_typed_words(found: Diagnosis, files: tuple[str, ...]) -> Diagnosis:
    """The same, saying which words in the place of files were read as the message itself."""
    words = [name for name in dict.fromkeys(files) if " " not in name.strip() and _is_message(name)]
    notes = (f'"{word}" is taken as the message itself: there is no such file' for word in words)
    return replace(found, notes=(*found.notes, *notes))


def diagnose_named_texts(texts: Mapping[str, Said], model: Any, options: Mapping[str, Any]) -> Diagnosis:
    """The same of texts and snapshots by name. ``options``: of the plan that ran."""
    plans: list[Mapping[str, Any]] = []
    every = tuple(_held_by_name(texts, plans))
    names = {held.name for held in every}
    said = {name: text for name, text in texts.items() if name not in names and isinstance(text, str | bytes)}
    for name, text in said.items():
        if len(text) > MOST_BYTES:
            raise input_error(
                name,
                None,
                f"is longer than the {MOST_BYTES:,} bytes that are read",
                "its end says most: tail -c 10000000",
            )
    if not every and not any(text.strip() for text in said.values()):
        raise input_error(
            next(iter(texts), TEXT), None, "is empty", "the error message, or the end of the log"
        )
    given = {key: value for key, value in options.items() if value is not None}
    card = _card_of_options(options)
    first = _joined_diagnosis(said, every, Axes(card=card))
    if model is None and not given and plans:
        given, model = {"plan": plans[0]}, plans[0].get("model")
    if model is None and not given:
        return first
    answer = _answer_of_configurations(said, model, given)
    if answer is None and model is None and set(given) <= {"gpus"}:
        return first
    served = first.program in SERVERS or first.cause in OF_SERVERS
    answer = answer or _answer_of_job(model, given, served=served)
    found = _joined_diagnosis(said, every, _axes_of_answer(answer, given)._replace(card=card))
    beside = tuple(printed_beside(found.facts, answer))
    notes = (*found.notes, *recompute_notes(found.held, answer), *_sheet_notes(found, answer))
    if more := held_beside(found.term, found.facts, answer):
        beside, notes = (*beside, more[0]), (*notes, more[1])
    unmade = replace(
        found, cures=tuple(cure for cure in found.cures if not _is_on_already(cure, answer.plan))
    )
    cured = cured_first(unmade, _accounted_cures(found, answer))
    return replace(cured, answer=answer, printed=beside, notes=notes)


def _held_by_name(texts: Mapping[str, Said], plans: list[Mapping[str, Any]]) -> Iterator[SnapshotFacts]:
    """What each snapshot among the texts shows; ``plans`` gets those that were written with them."""
    for name, text in texts.items():
        if isinstance(text, SnapshotFacts):
            yield text
            continue
        raw = (
            text.encode("utf-8", "replace")
            if isinstance(text, str) and text.lstrip().startswith("{")
            else text
        )
        if isinstance(raw, bytes) and is_failure(raw):
            held, plan = read_failure(raw, name)
            plans.extend([plan] if plan is not None else [])
            yield held
        elif isinstance(raw, bytes) and is_snapshot(raw):
            yield held_of(read_history(raw, name))


def _joined_diagnosis(
    said: Mapping[str, str | bytes], every: tuple[SnapshotFacts, ...], known: Axes | None
) -> Diagnosis:
    """Texts and snapshots of one job as one diagnosis."""
    told = diagnose_texts(said, known) if said else None
    if not every:
        assert told is not None
        return told
    return diagnose_held(every, told, known)


def _answer_of_configurations(said: Mapping[str, Any], model: Any, given: Mapping[str, Any]) -> Answer | None:
    """The plan that configuration files among the inputs are, on the cards that are named; None where none
    are, none of the files is one, or a plan says what ran.
    """
    if "plan" in given or not (model is None or isinstance(model, str)):
        return None
    names = tuple(name for name in said if Path(name).suffix in CONFIGURATIONS and Path(name).is_file())
    if not names or not any(given.get(key) for key in ("gpus", "cluster")):
        return None
    from memsheet.questions.check import check

    try:
        return check(*names, model=model, **given).answer
    except InputError:
        return None


def _answer_of_job(model: Any, options: dict[str, Any], *, served: bool) -> Answer:
    plan = options.get("plan")
    task = plan.get("task") if isinstance(plan, Mapping) else None
    engine = find_engine(str(options.get("engine", "")))
    only_serves = engine is not None and "train" not in engine.tasks
    asks_server = served or only_serves or any(key in options for key in SERVED)
    serves = task == "infer" or (task is None and asks_server)
    return accounted.infer(model, **options) if serves else accounted.train(model, **options)


def _card_of_options(options: Mapping[str, Any]) -> NamedCard | None:
    """The card that ``gpus`` names. Raises InputError where nobody has such a one."""
    gpus = options.get("gpus")
    if not isinstance(gpus, str):
        return None
    _, device = find_gpus(gpus)
    return NamedCard(device.name, (device.framework_high_bytes,))


def _axes_of_answer(answer: Answer, given: Mapping[str, Any]) -> Axes:
    """What the plan's own tensors come to: words and lengths as a rank has them, its sheet, and what of it is
    on already. ``given``: what was said of the plan.
    """
    plan, model = answer.plan, answer.model
    vocabularies = tuple(dict.fromkeys((model.vocab, -(-model.vocab // max(1, plan.mesh.tp)))))
    work = plan.workload
    lengths = (int(work.seq_len),) if isinstance(work, Training) else ()
    batches = (int(work.microbatch),) if isinstance(work, Training) else ()
    heads = tuple(dict.fromkeys(held for mixer in model.mixers() if (held := getattr(mixer, "heads", 0))))
    return Axes(
        vocabularies=vocabularies, tokens=tuple(_rank_tokens(plan, lengths, batches)), lengths=lengths, batches=batches,
        heads=heads, sheet=tuple(_sheet_sizes(answer)), recomputes=plan.recompute.mode is RecomputeMode.FULL,
        eight_bits=plan.optimizer is not None and plan.optimizer.name.value.endswith("bit"),
        single_rows="microbatch" in given and batches == (1,),
    )  # fmt: skip


def _rank_tokens(plan: Plan, lengths: tuple[int, ...], batches: tuple[int, ...]) -> Iterator[int]:
    for length in lengths:
        yield from (length * batch // max(1, plan.mesh.cp) for batch in batches)


def _sheet_sizes(answer: Answer) -> Iterator[tuple[str, str, int]]:
    """Tensors that are one: an item of the loss or the head; of what repeats a layer's share."""
    for sheet in answer.sheets[:1]:
        for item in sheet.items:
            size, layers = int(item.largest.value), answer.model.layers
            if "*" not in item.path:
                yield item.component.value, item.path, size
            elif layers and size % layers == 0:
                yield item.component.value, item.path, size // layers


_OF_SHEET = (Cause.REAL_NEED, Cause.UNKNOWN, Cause.FRAGMENTATION, Cause.REGIME_CHANGE)
"""Causes beside which a plan's own sheet has changes to offer."""


def _is_on_already(cure: Cure, plan: Plan) -> bool:
    """Whether the plan that ran has a change already."""
    few = (
        plan.quantization is not None
        and plan.quantization.weights.bits <= FEW_BITS * plan.quantization.weights.block
    )
    return {"train adapters alone": plan.adapter is not None, "weights in fewer bits": few}.get(cure.change, False)  # fmt: skip


FEW_BITS = 4
"""Of a weight, which fewer are rarely made of."""
_OF_A_PASS = ("microbatch", "global_batch", "seq_len", "recompute", "loss", "attention", "mesh.cp", "offload.activations")  # fmt: skip
"""Keys of changes that make smaller what a pass makes, and neither weights nor states."""


def _helps_request(change: Change, found: Diagnosis) -> bool:
    """Whether a change can make the request smaller that failed, or what was held then: one of weights as
    they are loaded, or of states in the step, lies beside nothing of a pass.
    """
    of_states = found.term is not None and found.term.component in _BESIDE_NO_PASS and not found.term.others
    keys = (change.key, *(key for key, *_ in change.also))
    return not of_states or not all(key.startswith(_OF_A_PASS) for key in keys)


_BESIDE_NO_PASS = ("parameters", "optimizer_states")


def _sheet_notes(found: Diagnosis, answer: Answer) -> Iterator[str]:
    """Where the plan does not fit by its own sheet, whatever the message alone shows."""
    verdict = answer.verdict
    if verdict is not None and verdict.result is Result.DOES_NOT_FIT and found.cause is Cause.FRAGMENTATION:
        yield "the plan's own sheet does not fit the card: no setting of the allocator makes room for all of it"  # fmt: skip
    fix = verdict.cheapest_fix if verdict is not None and found.cause in _OF_SHEET else None
    if fix and (later := [change.words for change in fix.changes if not _helps_request(change, found)]):
        yield f"by the plan's own sheet a step does not fit either: {', '.join(later)} would mend that, not the request that failed"  # fmt: skip


def _accounted_cures(found: Diagnosis, answer: Answer) -> Iterator[Cure]:
    """The changes of the plan that make it fit, each accounted again."""
    verdict = answer.verdict
    if verdict is None or verdict.cheapest_fix is None or found.cause not in _OF_SHEET:
        return
    settled = found.cause in (Cause.REAL_NEED, Cause.UNKNOWN) and verdict.result is Result.DOES_NOT_FIT
    changes = [change for change in verdict.cheapest_fix.changes if _helps_request(change, found)]
    alone = len(verdict.cheapest_fix.changes) == 1 and settled
    for change in changes:
        yield Cure(
            change=change.words, helps=YES if alone else "maybe", saves_bytes=int(change.saves_bytes),
            why="accounted again, the plan fits" if alone else "one of the changes that make the plan fit",
        )  # fmt: skip
