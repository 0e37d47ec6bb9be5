"""What files hold beside the sheet that is made of them, or keep elsewhere: how many bytes, and what comes of
an answer with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.budget import Answer, LadderStep, Result, Verdict, worst_sheet
from memsheet.exchange.shared.file_format import FileReading, Moved
from memsheet.exchange.shared.script_places import CARD
from memsheet.exchange.verdict_doubts import least_of, tower_parameters
from memsheet.formulas.serving.drafts import PREFIX
from memsheet.formulas.serving.projectors import projector_bytes
from memsheet.formulas.states.params import parameter_count
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.workload import Training
from memsheet.questions.length_doubts import resting_states
from memsheet.questions.named_models import bundled_name, model_of
from memsheet.questions.spread_layers import PLACE, exchanged_bytes, spread_moves
from memsheet.sheet import Bytes, Component, Sheet

with late_functions(__name__):
    from memsheet.questions.sized_models import sized_model


def moved_bytes(reads: Mapping[str, FileReading], answer: Answer | None) -> tuple[Moved, ...]:
    if answer is None:
        return ()
    job = answer.plan.workload
    micro = int(job.microbatch) * int(job.seq_len or 0) if isinstance(job, Training) else 0
    sizes = {
        "@hidden": answer.model.hidden,
        "@vocab": answer.model.vocab,
        "@tokens": micro,
        "@loss": answer.plan.loss.value,
        "@layers": answer.model.layers,
        "@parameters_of": _parameters_of_name,
        "@towers": len(answer.model.towers),
        "@tower_parameters": tower_parameters(answer.model),
        "@tower_states": _tower_state_range(answer),
        "@projector": _projector_most(answer),
        "@parameters": parameter_count(answer.model),
        "@ranks": answer.cluster.count if answer.cluster else 1,
        "@encodes": any(stack.role == "encoder" for stack in answer.model.stacks),
        "@draft": sum(
            int(item.largest.high)
            for item in worst_sheet(answer.sheets).items
            if item.path.startswith(PREFIX)
        ),
        "@passing": int(answer.verdict.device.high) - resting_states(answer) if answer.verdict else 0,
        "@saved": int(worst_sheet(answer.sheets).of(Component.SAVED_ACTIVATIONS).low),
        "@dequantized": _dequantized_bytes(worst_sheet(answer.sheets)),
        "@model_type": answer.model.model_type,
        "@exchanged": exchanged_bytes(worst_sheet(answer.sheets)),
        CARD: answer.cluster.device.framework_high_bytes if answer.cluster else 0,
    }
    asked = {**sizes, "precision.gradients": answer.plan.precision.gradients.name}
    sheet = worst_sheet(answer.sheets)
    moves = (
        _at_peak(moved, sheet)
        for read in reads.values()
        if read.form.moves
        for moved in read.form.moves(read.values, asked)
    )
    told = tuple(one for one in moves if one.instant is None or one.low_bytes or one.high_bytes)
    return (*told, *spread_moves(reads, answer))


def _projector_most(answer: Answer) -> int | None:
    """The most bytes of a model's encoder of pictures in llama.cpp; None where nothing bounds it."""
    size = projector_bytes(answer.model) if answer.model.towers else None
    return int(size.high) if size is not None else None


STATES_AT_REST = (Component.MASTER_WEIGHTS, Component.OPTIMIZER_STATES)


def _tower_state_range(answer: Answer) -> tuple[int, int]:
    """Bytes of a rank's gradients and optimizer states that are of towers' parameters, of which it has as
    many each as of others': without the gradients, which are not there at every moment, and with them.
    Nothing is sure of states that a sheet is not sure of.
    """
    sheet, tower = worst_sheet(answer.sheets), tower_parameters(answer.model)
    if not tower or answer.plan.adapter is not None:
        return 0, 0
    resting, gradients = sheet.of(*STATES_AT_REST), sheet.states.get(Component.GRADIENTS)
    most = int(resting.high) + (int(gradients.high) if gradients else 0)
    sure = int(resting.low) if resting.low == resting.high else 0
    return tower * sure // parameter_count(answer.model), -(-tower * most // parameter_count(answer.model))


def _dequantized_bytes(sheet: Sheet) -> int:
    """Of the experts that a layer makes whole of fewer bits, at the most."""
    held = (item.at.get(sheet.peak_instant) for item in sheet.items if item.path.endswith("/dequantized"))
    return sum(int(size.value) for size in held if size is not None)


def _parameters_of_name(name: str) -> int | None:
    """Parameters of a bundled model, or as many as a name says; None where neither tells."""
    known = bundled_name(name)
    spec = model_of(known) if known else None
    sized = sized_model(name) if name and spec is None else None
    spec = spec or (sized.spec if sized else None)
    return parameter_count(spec) if spec is not None else None


def _at_peak(moved: Moved, sheet: Sheet) -> Moved:
    """What moves the peak of what moves one moment of the step: nothing, as far as another needs more."""
    if moved.instant not in sheet.instants:
        return moved
    needs = {at: int(sheet.at(at).value) for at in sheet.instants}
    own = needs.pop(moved.instant)
    others = max(needs.values(), default=0)
    low, high = (max(own + more, others) - max(own, others) for more in (moved.low_bytes, moved.high_bytes))
    return replace(moved, low_bytes=low, high_bytes=high)


def with_moved_range(answer: Answer | None, whole: Answer | None, moved: tuple[Moved, ...]) -> Answer | None:
    """A training's answer with what its files hold beside the sheet in its range: what is sure to come on top
    is needed, too. ``whole``: the answer before it was doubted.
    """
    if answer is None or answer.verdict is None or whole is None or whole.verdict is None or not moved:
        return answer
    if not isinstance(answer.plan.workload, Training):
        return answer
    verdict, sheet = answer.verdict, whole.verdict.device
    always = [one for one in moved if one.instant is None]
    surely = sum(max(0, one.low_bytes) + min(0, one.high_bytes) for one in always)
    least = int(sheet.low) + sum(one.low_bytes for one in moved if one in always or one.low_bytes < 0)
    low = (
        max(_least_beside_moved(whole, moved), least)
        if verdict.device.low == sheet.low
        else int(verdict.device.low)
    )
    high = max(int(verdict.device.high), int(sheet.high) + sum(one.high_bytes for one in moved))
    value = min(max(int(sheet.value) + surely, low), high)
    room = verdict.headroom_bytes - (value - int(sheet.value))
    told = replace(verdict, device=Bytes(low, value, high), headroom_bytes=room)
    return replace(answer, verdict=told, ladder=_ladder_beside(answer, told, high - int(sheet.high)))


def _ladder_beside(answer: Answer, verdict: Verdict, most: int) -> tuple[LadderStep, ...]:
    """The lengths that were tried, with what files hold beside the sheet: ``most`` at the length that was
    taken and no more below it; what it is of longer rows nobody knows.
    """
    asked = int(answer.plan.training.seq_len or 0)
    room = answer.cluster.device.framework_low_bytes if answer.cluster else 0

    def judged(step: LadderStep) -> LadderStep:
        if step.seq_len == asked:
            return replace(step, device_bytes=int(verdict.device.value), result=verdict.result)
        sure = step.seq_len < asked and step.device_bytes + max(0, most) <= room
        if step.result is not Result.FITS or sure:
            return step
        return replace(step, result=Result.UNCERTAIN)

    return tuple(map(judged, answer.ladder))


def _least_beside_moved(whole: Answer, moved: tuple[Moved, ...]) -> int:
    """What stays on a card whatever files keep less of: the model's own states, unless those are what
    moves.
    """
    lessening = [one.at for one in moved if one.low_bytes < 0]
    return (
        0
        if PLACE in lessening
        else min(least_of(whole, lessening), int(worst_sheet(whole.sheets).device.low))
    )
