"""The cards that a job runs on, by what is named and by what its files start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memsheet.budget import Answer
from memsheet.catalog import find_device, find_gpus, named_cards
from memsheet.errors import InputError
from memsheet.exchange.joined_files import join_files
from memsheet.exchange.shared.file_format import FileReading, Together
from memsheet.exchange.shared.script_defaults import ASK_FOR_CARDS
from memsheet.exchange.shared.script_places import SEEN_CARDS
from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.plan.hardware import BF16_UNITS, is_older_device
from memsheet.plan.model import ModelSpec
from memsheet.plan.sequence_length import derived_max_length
from memsheet.questions.named_models import (
    model_of,
)
from memsheet.questions.open_degrees import open_degrees, with_degree_of_cards
from memsheet.questions.spread_layers import IDLE, with_spread_layers
from memsheet.questions.stretched_positions import LENGTH
from memsheet.resolve.mesh import NOT_THE_PRODUCT, mesh_product

if TYPE_CHECKING:
    from memsheet.questions.file_answers import AccountedJob


def join_on_cards(
    reads: Mapping[str, FileReading],
    planned: Mapping[str, Any],
    flags: Mapping[str, Any],
    gpus: Any,
    where: Mapping[str, Any],
) -> tuple[Together, Any]:
    """The files as one request, and the cards that it runs on."""
    whole = join_files(reads, planned, flags, named_cards(str(gpus))[0] if gpus else None)
    if named := list(open_degrees(reads, {**planned, **flags})):
        return with_degree_of_cards(whole, named, named_cards(str(gpus))[0] if gpus else None), gpus
    whole = with_spread_layers(reads, whole, named_cards(str(gpus))[0] if gpus else None)
    taken = _fewer_cards(gpus, where, whole, reads)
    if not taken:
        return whole, gpus
    whole = join_files(reads, planned, flags, named_cards(taken)[0])
    idle = f"gpus = {taken}: {IDLE} {gpus}"
    return replace(whole, assumed=(idle, *whole.assumed)), taken


def gpus_of_degrees(gpus: Any, job: AccountedJob) -> str | None:
    """As many cards as the files' own degrees multiply to, where they say all of them and others are
    named.
    """
    if not gpus or not any(NOT_THE_PRODUCT in reason for reason in job.why_not):
        return None
    return f"{mesh_product(job.whole.request)}x{named_cards(str(gpus))[1]}"


def too_few_cards(gpus: Any, job: AccountedJob) -> tuple[int, int] | None:
    """The GPUs that are named and the ranks of the job, which take one each, where those are more."""
    named, ranks = (named_cards(str(held))[0] if held else None for held in (gpus, job.ask["gpus"]))
    return (named, ranks) if named and ranks and named < ranks else None


def words_of_node(gpus: Any, job: AccountedJob, texts: Mapping[str, str]) -> str:
    """That the GPUs which are named are those of one of the nodes that the files say, in words; empty where
    they are not.
    """
    short = too_few_cards(gpus, job)
    if short is None:
        return ""
    named, ranks = short
    if nodes := job.whole.nodes:
        of_them = f"{gpus} is one of the {nodes} nodes that the files say: the sheet is on all {ranks} GPUs"
        return of_them if named * nodes == ranks else ""
    if ranks % named or not any(map(SEVERAL_MACHINES.search, texts.values())):
        return ""
    return (
        f"{gpus} is taken for one of {ranks // named} nodes, as the files start several: the sheet is on all "
        f"{ranks} GPUs"
    )


def words_of_processes(gpus: Any, reads: Mapping[str, FileReading]) -> str:
    """That the files start another number of processes than GPUs are named, in words; empty where they do
    not.
    """
    named = named_cards(str(gpus))[0] if gpus else None
    for name, read in reads.items():
        started = read.request.get("@gpus")
        counts = isinstance(started, int) and read.form.name not in ASK_FOR_CARDS
        if named and counts and started != named:
            does = f"sees {started} GPUs" if read.form.name == SEEN_CARDS else f"starts {started} processes"
            return f"the sheet is on {gpus}, as --gpus says: {name} {does}"
    return ""


def words_of_more_cards(gpus: Any, answer: Answer | None, beyond: Any) -> str:
    """That the models of a job take more cards than are named, and than what trains takes by itself,
    ``beyond``, in words; empty where they do not.
    """
    named, own = (named_cards(str(held))[0] if held else None for held in (gpus, beyond))
    count = answer.cluster.count if answer is not None and answer.job and answer.cluster else 0
    if not named or count <= max(named, own or 0):
        return ""
    return f"the models of the job take {count} cards, and --gpus names {named}: the sheet is on {count}"


SLOTS = "serving.max_sequences"
SEVERAL_MACHINES = late_pattern(
    r"(?:#SBATCH\s+-N|--nodes|--?nnodes|\bn_?nodes|\bnum_nodes)[\"']?\s*[ =:]\s*[\"']?(?:[2-9]\b|[1-9]\d|\$)"
    r"|\bray (?:start|job)|\bRay(?:Cluster|Service|Job)\b|\bLeaderWorkerSet\b|\bMPIJob\b"
    r"|--node-rank|--machine_rank|executor-backend[ =]ray|\bmpirun\b|\bhostfile\b",
    re.IGNORECASE,
)
"""What a text says that starts a job on several machines, of which named cards may be one's."""


def as_cards_decide(found: FileReading, gpus: Any, name: str | ModelSpec | None) -> FileReading:
    """A file with what its program takes by the memory of the named cards, each of its slots no longer than
    the model (ollama/ollama fb307609 llm/server.go:111-116): nothing is open of it where the least that they
    have and the most come to the same. A length that the file says stays: which one a library's file was made
    for its name does not tell.
    """
    if found.form.by_cards is None or not gpus:
        return found
    try:
        count, card = find_gpus(str(gpus))
    except InputError:
        return found
    total = (count or 1) * (card.driver_bytes or card.framework_high_bytes)
    taken = dict(found.form.by_cards(found.values, total))
    if taken == found.form.by_cards(found.values, (count or 1) * card.framework_low_bytes):
        found = _without_open_keys(found, taken)
    longest = derived_max_length(model_of(name))
    slots = found.request.get(SLOTS)
    if longest and taken.get(LENGTH):
        taken[LENGTH] = min(longest * (slots if isinstance(slots, int) else 1), taken[LENGTH])
    return replace(found, request={**taken, **found.request})


def _without_open_keys(found: FileReading, taken: Mapping[str, Any]) -> FileReading:
    """A file of which the keys that cards have decided are open no more."""
    decided = {
        row.at for row in found.form.keys if row.says in taken and found.values.get(row.at) in row.decides
    }
    return replace(found, unmodelled=tuple(one for one in found.unmodelled if one[0] not in decided))


def has_bf16_units(gpus: Any) -> bool | None:
    """Whether the named cards have units for bf16; None where none are named, or nobody knows them."""
    try:
        return not is_older_device(find_device(named_cards(str(gpus))[1]), BF16_UNITS) if gpus else None
    except InputError:
        return None


def gpus_for_processes(named: Any, reads: Mapping[str, FileReading]) -> str | None:
    """The cards of a plan, as many as the files start processes."""
    counts = [read.request["@gpus"] for read in reads.values() if isinstance(read.request.get("@gpus"), int)]
    if not named or not counts:
        return str(named) if named else None
    return f"{counts[-1]}x{named_cards(str(named))[1]}"


def counted_cards(named: Any, planned: Any, reads: Mapping[str, FileReading]) -> Any:
    """The named cards, and of a name without a count as many as the files say, else a plan beside them.
    ``planned``: the plan's cards.
    """
    if not named or named_cards(str(named))[0]:
        return named
    count = named_cards(str(planned))[0] if planned else None
    return gpus_for_processes(f"{count}x{named}" if count else named, reads)


def _fewer_cards(
    gpus: Any, where: Mapping[str, Any], whole: Together, reads: Mapping[str, FileReading]
) -> str | None:
    """The cards that a server's command takes, where it says its degrees and more are named; or a training
    that starts its processes itself.
    """
    if not gpus or where["nodes"] or where["cluster"]:
        return None
    count, card = named_cards(str(gpus))
    serves = whole.request.get("task") == "infer" and whole.request.get("mesh.tp") is not None
    own = (read.request.get("@gpus") for read in reads.values() if read.form.own_processes)
    ranks = mesh_product(whole.request) if serves else next(own, None)
    return f"{ranks}x{card}" if ranks and count and ranks < count else None
