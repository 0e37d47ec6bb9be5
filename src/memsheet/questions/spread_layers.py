"""A model that one process loads over several cards (``device_map``): whether files do so, and what is known
of its cards where the map is not modelled and the sheet is of a whole copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memsheet.budget import Answer, worst_sheet
from memsheet.exchange.shared.file_format import FileReading, Moved, Together
from memsheet.exchange.shared.script_defaults import ASK_FOR_CARDS, LAUNCHED
from memsheet.exchange.shared.script_places import MAPS, ONE_PROCESS, SCRIPT, SPREADS, WITHIN
from memsheet.exchange.shared.slurm_environment import TASKS
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32
from memsheet.plan.plan import Schedule
from memsheet.plan.workload import Serving, Training
from memsheet.resolve.device_map import deal_layers, module_sizes
from memsheet.sheet import STATES, Component, Sheet

PLACE = f"{SCRIPT}.{SPREADS}"
IDLE = "the command takes no more of"
"""How it is told that named cards are left idle."""
BALANCED = ("auto", "balanced")
IN_TURN = "sequential"
"""The map that fills one card after the other; all others give each an even share, but where a call says how
much each may take.
"""


def spreads_layers(reads: Mapping[str, FileReading], answer: Answer) -> bool:
    """Whether one process spreads the layers of a training over the cards that it sees: a script that loads
    so, and that nothing starts more than once (transformers 5.23.0 trainer.py: is_model_parallel).
    """
    cards = answer.cluster.count if answer.cluster else 1
    loads = any(read.values.get(PLACE) in MAPS for read in reads.values())
    if answer.plan.schedule is Schedule.NAIVE:  # its sheet is of each card
        return False
    return loads and not _starts_ranks(reads) and cards > 1 and isinstance(answer.plan.workload, Training)


def _starts_ranks(reads: Mapping[str, FileReading]) -> bool:
    """Whether files may start a training more than once: any launcher does unless its script is one process
    all the same, and then a file that asks for GPUs of one node and starts no tasks, or a launcher of one.
    """
    launchers = [read for read in reads.values() if read.form.name in LAUNCHED]
    alone = any(read.values.get(f"{SCRIPT}.{ONE_PROCESS}") is True for read in reads.values())
    return bool(launchers) and not (alone and all(map(_starts_one, launchers)))


def _starts_one(read: FileReading) -> bool:
    if read.form.name not in ASK_FOR_CARDS:
        return read.request.get("@gpus") == 1
    counted = all(isinstance(read.values.get(at, 1), int) for at in ("#ntasks", "#ntasks-per-node"))
    return counted and read.values.get(TASKS, [1, 1]) == [1, 1] and read.request.get("@nodes", 1) == 1


def with_spread_layers(reads: Mapping[str, FileReading], whole: Together, count: int | None) -> Together:
    """A generation that loads its model so, with whole layers on each of the named cards, as the library's
    own sheet of several cards has them; any other request as it is.
    """
    loads = any(read.values.get(PLACE) in MAPS for read in reads.values())
    started = any(read.form.name in LAUNCHED for read in reads.values())
    serves = whole.request.get("task") == "infer" and whole.request.get("mesh.tp", 1) == 1
    if not loads or started or not serves or not count or count < 2 or whole.request.get("mesh.pp"):
        return whole
    taken = f"mesh.pp = {count}: one process has whole layers on each of {count} GPUs ({SPREADS})"
    return replace(whole, request={**whole.request, "mesh.pp": count}, assumed=(taken, *whole.assumed))


def is_balanced(reads: Mapping[str, FileReading]) -> bool:
    """Whether the map is one that gives each card its share."""
    return any(read.values.get(PLACE) in BALANCED for read in reads.values())


def process_words(answer: Answer) -> str:
    cards = answer.cluster.count if answer.cluster else 1
    return f"one process spreads the layers over {cards} GPUs ({SPREADS})"


def spread_words(answer: Answer) -> str:
    return f"{process_words(answer)}, and the sheet is of a whole copy on each"


def even_share(answer: Answer) -> int:
    """What the fullest of the cards that share a copy has at least: no less than an even share of it."""
    assert answer.verdict is not None
    assert answer.cluster is not None
    exchanged = exchanged_bytes(worst_sheet(answer.sheets))
    return max(0, int(answer.verdict.device.low) - exchanged) // answer.cluster.count


def exchanged_bytes(sheet: Sheet) -> int:
    """Of buckets in which replicas exchange their gradients, at most."""
    return max(int(sheet.of(Component.COMMUNICATION, instant=at).high) for at in sheet.instants)


def spread_moves(reads: Mapping[str, FileReading], answer: Answer) -> tuple[Moved, ...]:
    """What the fullest card has less than a whole copy: all but its share of the states, which is an even one
    with the room of 1.25 of the largest part beside it, and the part with which it is passed (accelerate
    1.15.0 utils/modeling.py, get_balanced_memory: buffer; infer_auto_device_map), and all buckets. What the
    layers keep for backward is left whole, as the last card may have the most of it.
    """
    if isinstance(answer.plan.workload, Serving):
        return tuple(_served_moves(reads, answer))
    if not spreads_layers(reads, answer) or answer.verdict is None or answer.cluster is None:
        return ()
    sheet, cards = worst_sheet(answer.sheets), answer.cluster.count
    sums = sheet.sums()[sheet.peak_instant]
    states = sum(int(sums[one].value) for one in STATES if one in sums)
    share = states // cards + (9 * _largest_part(answer, states)) // 4
    buckets = int(sums[Component.COMMUNICATION].low) if Component.COMMUNICATION in sums else 0
    in_turn = any(read.values.get(PLACE) in (IN_TURN, WITHIN) for read in reads.values())
    surely = 0 if in_turn else max(0, states - share) + buckets
    most = int(answer.verdict.device.low) - even_share(answer)
    return (Moved(at=PLACE, why=spread_words(answer), low_bytes=-max(surely, most), high_bytes=-surely),)


def _served_moves(reads: Mapping[str, FileReading], answer: Answer) -> Iterator[Moved]:
    """What the fullest card of a generation has beside an equal number of layers: the layers that the map
    deals it more, with their cache; all of them where the map fills one card after the other, or is not
    modelled.
    """
    cards, model = answer.plan.mesh.pp, answer.model
    maps = [read.values[PLACE] for read in reads.values() if read.values.get(PLACE) in MAPS]
    if not maps or cards < 2 or answer.cluster is None:
        return
    sheet = worst_sheet(answer.sheets)
    sums = sheet.sums()[sheet.peak_instant]
    held = sum(int(sums[one].high) for one in (*STATES, Component.KV_CACHE) if one in sums)
    equal = -(-model.layers // cards)
    layer = -(-held // max(1, equal))
    most = model.layers
    if maps[-1] in BALANCED and len(model.stacks) == 1 and model.recording is None:
        sizes = module_sizes(model, answer.plan)
        most = max(deal_layers(sizes, cards, answer.plan, answer.cluster.device.framework_bytes).layers)
    why = f"layers of the fullest of {cards} GPUs: the sheet has {equal}, and the map may deal it {most}"
    yield Moved(at=PLACE, why=why, low_bytes=-layer, high_bytes=layer * max(0, most - equal))


def _largest_part(answer: Answer, states: int) -> int:
    """Bytes of states of the largest part that no map cuts: a layer, or the table of words, which no
    quantization takes.
    """
    model, plan = answer.model, answer.plan
    trained = 1 if plan.adapter is not None else 4  # with a gradient and two moments
    table = model.vocab * model.hidden * (4 if plan.precision.parameters is FP32 else 2) * trained
    return min(states, max(table, states // max(1, model.layers)))
