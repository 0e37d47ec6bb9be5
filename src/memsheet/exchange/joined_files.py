"""What is asked of a format, from a plan's document; and what several files of one job say together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from memsheet.budget import Answer
from memsheet.exchange import find_format
from memsheet.exchange.shared.dotted_places import flatten_tree
from memsheet.exchange.shared.file_format import COUNTS, Disagreement, FileReading, Together, is_key
from memsheet.exchange.shared.file_format import read_format_values as read_values
from memsheet.exchange.shared.launched_script import ACCELERATE
from memsheet.exchange.shared.script_defaults import (
    ASK_FOR_CARDS,
    KINDS,
    LAUNCHED,
    absent_files,
    derived_microbatch,
    named_config_values,
    of_the_script,
)
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.check import flatten_document
from memsheet.plan.layers import has_experts
from memsheet.plan.overriding import without_overridden
from memsheet.plan.workload import Serving

with late_functions(__name__):
    from memsheet.exchange.shared.config_references import with_references
    from memsheet.exchange.shared.inherited_yaml import merged_trees
    from memsheet.exchange.shared.loop_places import wraps_by_itself
    from memsheet.exchange.shared.trainers import with_master


if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences


MESH = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
PLAN = "plan.json"
BATCHES = {"microbatch", "global_batch"}


def written_request(
    document: Mapping[str, Any], *, nodes: int, gpus: int, accumulation: int, experts: bool = False
) -> dict[str, Any]:
    """A plan's document as what formats write. Null keys are left out. ``experts``: whether the model has
    any.
    """
    flat = {key: value for key, value in flatten_document(document).items() if value is not None}
    return {
        **flat, "@gpus": gpus, "@nodes": nodes, "@per_node": gpus // nodes, "@accumulation": accumulation, "@model": document.get("model") or "",
        **({"@experts": True} if experts else {}),
    }  # fmt: skip


def written_answer(answer: Answer, written: Mapping[str, Any]) -> dict[str, Any]:
    """An answered plan as what formats write. ``written``: its document."""
    serves = isinstance(answer.plan.workload, Serving)
    return written_request(
        written,
        gpus=int(answer.plan.mesh.gpus),
        nodes=answer.cluster.nodes if answer.cluster else 1,
        accumulation=1 if serves else int(answer.plan.accumulation),
        experts=has_experts(answer.model),
    )


def with_their_files(reads: Mapping[str, FileReading]) -> dict[str, FileReading]:
    """Files read, where a command names a file that says the rest of its flags both as one; the command's own
    go first.
    """
    found = dict(reads)
    for name, own in reads.items():
        for at in own.form.refers:
            of = next((other for other in found if _is_named(own, at, other, found[other])), None)
            if of is not None:
                rest = found.pop(of)
                left_out = () if rest.shipped else (at,)  # what stands for a file leaves its name, as absent
                said = {
                    key: held for key, held in own.values.items() if held is not None and key not in left_out
                }
                both = read_values(own.form, {**rest.values, **said})
                told = rest.assumed[-1:] if rest.shipped else (f"{at} {own.values[at]} says the rest",)
                found[name] = replace(both, release=own.release, assumed=(*both.assumed, *told))
    return found


def with_own_defaults(
    reads: Mapping[str, FileReading], defaults: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> dict[str, FileReading]:
    """Files read, with the defaults of the copy of their program that lies in the same tree, in the place of
    those of the release that is known; but for the model, which a launch names. What they name of other keys
    is as the launch has it.
    """
    found = dict(reads)
    for name, (file, tree) in defaults.items():
        own = reads[name]
        whole = with_references(merged_trees(tree, _nested_values(own.values)))
        flat = dict(flatten_tree(whole, whole=own.form.whole))
        usual = {at: held for at, held in flat.items() if is_key(own.form, at) and not at.endswith(".path")}
        both = read_values(own.form, {**usual, **own.values})
        known = (line for line in own.assumed if own.form.tested not in line)
        told = (*known, f"defaults = those of {file}, which lies in the same tree")
        found[name] = replace(both, release=own.release, assumed=told)
    return found


def _nested_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their places as the objects that they lie in."""
    found: dict[str, Any] = {}
    for at, held in values.items():
        *groups, last = at.split(".")
        inside = found
        for group in groups:
            below = inside.setdefault(group, {})
            inside = below if isinstance(below, dict) else {}
        inside[last] = held
    return found


def _is_named(own: FileReading, at: str, name: str, other: FileReading) -> bool:
    """Whether it is the file of the command's own format that a flag names."""
    value = own.values.get(at)
    file = name.rpartition(": ")[2].rpartition("/")[2]  # a script's own text may be what writes it
    named = isinstance(value, str) and value.rpartition("/")[2] == file
    return named and other is not own and other.form.name == own.form.name == KINDS.get(at)


def with_shipped_files(reads: Mapping[str, FileReading]) -> dict[str, FileReading]:
    """Files read, and those that they name and that lie nowhere, as the project has them whose files name
    them so. They are named as absent all the same.
    """
    found = dict(reads)
    for name in absent_files(reads):
        for read in reads.values():
            held = next((held for end, held in read.form.ships.items() if _ends_path(name, end)), None)
            if held is not None:
                told = (
                    f"{name} lies nowhere here, and is taken as the repository of {read.form.tested} has it"
                )
                own = read_values(find_format("deepspeed"), held)
                found[name] = replace(own, assumed=(*own.assumed, told), shipped=True)
        if name not in found and (named := _read_of_name(name, reads)):
            told = f"{name} lies nowhere here, and is taken for what its name says"
            found[name] = replace(named, assumed=(*named.assumed, told), shipped=True, guessed=True)
    return found


def _read_of_name(name: str, reads: Mapping[str, FileReading]) -> FileReading | None:
    """What a launcher's file that lies nowhere says by its name, if anything: a stage, a sharding."""
    at = next((at for read in reads.values() for at in read.form.refers if read.values.get(at) == name), "")
    kind = KINDS.get(at, "deepspeed")
    values = named_config_values(kind, name) if kind in ("deepspeed", "accelerate") else {}
    return read_values(find_format(kind), values) if values else None


def _ends_path(name: str, end: str) -> bool:
    return name == end or name.endswith(f"/{end}")


def _counted_words(name: str, reads: Mapping[str, FileReading]) -> str:
    """What a file counts by the number of its GPUs."""
    if name in reads and reads[name].form.name in ASK_FOR_CARDS:
        return f"that {name} asks for"
    return f"processes that {name} starts"


def join_files(
    reads: Mapping[str, FileReading], plan: Mapping[str, Any], given: Mapping[str, Any], gpus: int | None
) -> Together:
    """One request of a plan written beside, of files by name and of flags, later ones over earlier ones.
    ``gpus``: as a flag says.
    """
    said: dict[str, list[tuple[str, Any]]] = {}
    weak: dict[str, Any] = {}
    for name, held in ((PLAN, plan), *((name, _launched_as(read, reads)) for name, read in reads.items())):
        for key, value in held.items():
            if key.startswith("?"):
                weak[key[1:]] = value
            elif value is not None:
                said.setdefault(key, []).append((name, value))
    said = {key: _without_defaults(key, held, reads) for key, held in said.items()}
    count = gpus or next((held[-1][1] for key, held in said.items() if key == "@gpus"), None)
    planned = _mesh_ranks(plan)
    if (
        count and planned and planned != count
    ):  # ranks that a plan divides states over are as many as are started
        for axis in ("mesh.dp_shard", "mesh.dp_replicate"):
            said[axis] = [one for one in said.get(axis, ()) if one[0] != PLAN] or [(PLAN, None)]
        if not gpus:
            said["@gpus"] = [(PLAN, planned), *said["@gpus"]]
    request = {key: held[-1][1] for key, held in said.items() if held[-1][1] is not None}
    request = {**without_overridden(request, given), **given}
    assumed = [f"{key} = {value}" for key, value in weak.items() if not is_key_set(key, request)]
    assumed += [
        f"{gpus} GPUs, as the flag says, in place of the {held} {_counted_words(name, reads)}"
        for name, held in said.get("@gpus", ())
        if gpus and held != gpus
    ]
    assumed += _overridden_by_flags(said, given)
    request.update({key: value for key, value in weak.items() if not is_key_set(key, request)})
    counts = {key: request.pop(key, None) for key in (*COUNTS, "@model")}
    several = request.get("engine") in UNITED and counts["@accumulation"] != 1
    if several and (synced := _gradient_sync(reads)):
        request.setdefault("gradient_sync", synced)
    if count and not given.keys() & BATCHES:
        ranks = max(1, count // _ranks_per_microbatch(request))
        request.update(
            pair for read in reads.values() for pair in read.form.on_ranks(read.values, ranks).items()
        )
    if micro := derived_microbatch(
        reads, request, count // _ranks_per_microbatch(request) if count else None
    ):
        request["microbatch"] = micro
        assumed.append(f"microbatch = {micro}, which DeepSpeed makes of train_batch_size")
    if counts["@accumulation"] and "global_batch" not in request and count:
        request["global_batch"] = _global_batch_sequences(request, count, counts["@accumulation"])
    method = preferences_in(reads)
    own_batch = isinstance(request.get("microbatch"), int) and not (given.keys() | plan.keys()) & BATCHES
    rows = method.rows if method and method.sure and own_batch else 1
    if method and rows > 1:
        both = {key: rows * size for key in BATCHES if isinstance(size := request.get(key), int)}
        request = {**request, **both}
        each = f"both sequences of {request['microbatch'] // rows} pairs of {method.method}"
        assumed.append(f"microbatch = {request['microbatch']}: {each}")
    apart = [
        Disagreement(key=key, said=tuple(held))
        for key, held in said.items()
        if len({repr(value) for _, value in held}) > 1 and not _values_agree(held)
    ]
    meant = {one.key: words for one in apart if (words := _known_difference_text(one, reads))}
    return Together(
        request=request,
        gpus=count,
        nodes=counts["@nodes"],
        accumulation=counts["@accumulation"],
        assumed=(*assumed, *meant.values()),
        disagree=tuple(one for one in apart if one.key not in meant),
        meant=tuple(one for one in apart if one.key in meant),
        rows=rows,
        script=of_the_script(reads, request, (plan, given)),
        problems=tuple(problem for read in reads.values() for problem in read.problems),
    )


def _overridden_by_flags(
    said: Mapping[str, Sequence[tuple[str, Any]]], given: Mapping[str, Any]
) -> Iterator[str]:
    """Options whose value in the files gives way to a flag's."""
    for key, value in given.items():
        held = said.get(key, ())
        old = held[-1][1] if held else None
        if not key.startswith("@") and None not in (old, value) and old != value:
            yield f"{key} = {value}, as the flag says, in place of {old}"


def _gradient_sync(reads: Mapping[str, FileReading]) -> str:
    """Which micro-batches reduce gradients of units that are gathered: where a file names a release, only
    what every release does is known.
    """
    found = {read.form.gradient_sync for read in reads.values() if not read.release} - {""}
    each = any(
        at.endswith(EACH_BATCH) and value for read in reads.values() for at, value in read.values.items()
    )
    return "every" if each else found.pop() if len(found) == 1 else ""


def preferences_in(reads: Mapping[str, FileReading]) -> Preferences | None:
    """The method of the first file that trains on preferences."""
    found = (read.form.preferences(read.values) for read in reads.values())
    return next((method for method in found if method is not None), None)


LOADED = tuple(f"precision.{name}" for name in ("parameters", "gradients", "moments", "reduce"))
ADAPTERS = ("adapter.dtype",)
"""Cast with the rest of the model by DeepSpeed, whatever the script makes them in (DeepSpeed 0.19.8
deepspeed/runtime/engine.py:1755-1762).
"""
DIVIDED = ("fsdp1", "fsdp2", "deepspeed")
UNITED = ("fsdp1", "fsdp2")
EACH_BATCH = "sync_each_batch"
IN_PIECES = "chunked"


MIXED = "?precision.parameters"
"""What a switch for sixteen bits says beside the dtype that is computed in; a model that is loaded in them
does not.
"""


def _launched_as(own: FileReading, reads: Mapping[str, FileReading]) -> Mapping[str, Any]:
    """What a script's file says, less what the launcher's makes of it: sharding with mixed precision,
    whichever of them says it, raises what was loaded to fp32 (accelerate 1.15.0 utils/fsdp_utils.py:814), and
    DeepSpeed has its own dtypes, of adapters too. A loss in pieces is not modelled under sharding:
    Liger's stands for it. Accelerate's configuration is for a script that makes its driver: of any other that
    wraps its model it starts the processes.
    """
    others = [
        other
        for other in reads.values()
        if other.request.get("engine") in DIVIDED and "engine" not in other.unsaid
    ]
    if own.form.name == ACCELERATE and any(map(wraps_by_itself, reads.values())):
        return {key: held for key, held in own.request.items() if key.startswith("@") or key == "task"}
    if own.form.beside_engine and any(other.form.keeps_engine for other in reads.values()):
        return {key: held for key, held in own.request.items() if key != "engine"}
    if own.form.keeps_engine:
        divides = [other for other in reads.values() if other.form.beside_engine]
        widths = {key for other in divides for key in other.request if key.startswith("precision.")}
        return {key: held for key, held in own.request.items() if key not in widths}
    if not own.form.stored or not others:
        return own.request
    mixed = own.request.get("precision.compute") if MIXED in own.request else None
    launchers = [other for other in others if other is not own]  # which has it in its own rows
    raised = any(
        other.request["engine"] == "deepspeed" or other.request.get("precision.compute") or mixed
        for other in launchers
    )
    left: tuple[str, ...] = LOADED if raised and not _trains_adapters(own.request) else ()
    cast = any(other.request["engine"] == "deepspeed" for other in others)
    left += ADAPTERS if cast else ()
    said = {key: held for key, held in own.request.items() if key not in left}
    said |= _sixteen_bits_of_deepspeed(said, others)
    if mixed and any(other.request["engine"] in UNITED for other in launchers):
        said["precision.reduce"] = mixed  # accelerate 1.15.0 state.py:1015, which the Trainer's bf16 sets
    return {**said, "loss": "fused"} if said.get("loss") == IN_PIECES else said


def _trains_adapters(said: Mapping[str, Any]) -> bool:
    return any(said.get(key) is not None for key in ("adapter.rank", "?adapter.rank", "adapter.kind"))


def _sixteen_bits_of_deepspeed(said: Mapping[str, Any], others: Sequence[FileReading]) -> Mapping[str, Any]:
    """What a training's own switch for sixteen bits makes of DeepSpeed where no file of its own says: the
    launcher writes it there (accelerate 1.15.0 accelerator.py, _prepare_deepspeed: bf16.enabled and
    fp16.enabled of its mixed precision, which the Trainer's bf16 and fp16 set).
    """
    width = said.get("precision.compute")
    silent = not any("precision.parameters" in other.request for other in others)
    engines = {other.request.get("engine") for other in others}
    if engines != {"deepspeed"} or not silent or width not in ("bf16", "fp16") or _trains_adapters(said):
        return {}
    return with_master(width)


def _without_defaults(
    key: str, held: list[tuple[str, Any]], reads: Mapping[str, FileReading]
) -> list[tuple[str, Any]]:
    """What files say themselves, where any does: a default contradicts nothing, nor does what starts a script
    say whether that trains. Of defaults of an engine's sharding, those of the file that says the engine.
    """
    if key == "task":
        own = [one for one in held if one[0] not in reads or reads[one[0]].form.name not in LAUNCHED]
        return own or held
    said = [one for one in held if one[0] not in reads or key not in reads[one[0]].unsaid]
    if said or key != "zero":
        return said or held
    return [one for one in held if _says_engine(reads[one[0]])] or held


def _says_engine(read: FileReading) -> bool:
    return "engine" in read.request and "engine" not in read.unsaid


def _mesh_ranks(plan: Mapping[str, Any]) -> int | None:
    """How many ranks a plan's mesh has, where it says all of it."""
    degrees = [plan.get(f"mesh.{axis}") or 1 for axis in MESH]
    if not any(plan.get(f"mesh.{axis}") for axis in MESH) or not all(
        isinstance(degree, int) for degree in degrees
    ):
        return None
    return prod(degrees)


def is_key_set(key: str, request: Mapping[str, Any]) -> bool:
    """Whether something says a key already; a set of dtypes says all of them, and an adapter's are its
    own.
    """
    if key == "precision.name":
        return any(other.startswith("precision.") for other in request)
    return key in request or (
        key.startswith("precision.") and ("precision.name" in request or _trains_adapters(request))
    )


def _known_difference_text(one: Disagreement, reads: Mapping[str, FileReading]) -> str:
    """A difference that its format is known for, and that export tells where it writes one: no mistake."""
    (first, planned), *files = one.said
    told = {reads[name].form.differs.get(one.key) for name, _ in files if name in reads}
    if first != PLAN or not files or None in told or len({repr(value) for _, value in files}) > 1:
        return ""
    return (
        f"{one.key} = {files[-1][1]} as {files[-1][0]} runs it, {planned} in {PLAN}: "
        f"{'; '.join(sorted(filter(None, told)))}"
    )


def _values_agree(held: Iterable[tuple[str, Any]]) -> bool:
    return len({value for _, value in held if isinstance(value, int | float)}) == 1 and all(
        isinstance(v, int | float) for _, v in held
    )


def _global_batch_sequences(request: Mapping[str, Any], gpus: int, accumulation: int) -> int | None:
    """Sequences of a step: micro-batch · accumulation · data-parallel ranks."""
    micro = request.get("microbatch") or 1
    return (
        micro * accumulation * (gpus // _ranks_per_microbatch(request)) or None
        if isinstance(micro, int)
        else None
    )


def _ranks_per_microbatch(request: Mapping[str, Any]) -> int:
    """Ranks that share one micro-batch."""
    degrees = [request.get(f"mesh.{axis}") or 1 for axis in ("cp", "tp", "pp")]
    return max(1, prod(degrees)) if all(isinstance(degree, int) for degree in degrees) else 1
