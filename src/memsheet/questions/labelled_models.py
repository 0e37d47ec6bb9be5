"""Models that a script loads with a head that tells labels apart, in place of a vocabulary's tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memsheet.errors import InputError
from memsheet.exchange.joined_files import preferences_in
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.script_places import LABELS, LABELS_PLACE
from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import ModelSpec
from memsheet.questions.named_models import model_of
from memsheet.readers.label_heads import LABELLED, OF_LABELS, without_vocabulary

OTHER_HEAD = late_pattern(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
"""Behind a family's name in the library's classes: what is put on the model."""
CLASSIFIES = "classification"
EXAMPLES = {
    "run_glue": "ForSequenceClassification", "run_xnli": "ForSequenceClassification", "run_classification": "ForSequenceClassification",
    "run_ner": "ForTokenClassification", "run_qa": "ForQuestionAnswering", "run_qa_beam_search": "ForQuestionAnswering",
    "run_swag": "ForMultipleChoice",
}  # fmt: skip
"""Scripts of the library's own examples, by what they load (huggingface/transformers v5.3.0
examples/pytorch/{text-classification,token-classification,question-answering,multiple-choice}).
"""


def with_labels_head(
    name: str | ModelSpec | None, reads: Mapping[str, FileReading]
) -> tuple[str | ModelSpec | None, dict[str, FileReading]]:
    """The model with the head that the files load it with, and the files without what they say of it; both
    as they are where nobody accounts that head on that model.
    """
    head = next((held for at, read in reads.items() if (held := _head_of_labels(at, read))), None)
    known = head and isinstance(name, str) and not _lacks_heads(reads)
    model = _read_with_head(str(name), str(head)) if known else None
    method = preferences_in(reads)
    if model is None and (head in OF_LABELS or (method is not None and method.scored)):
        model = without_vocabulary(model_of(name) if name is not None else None, LABELLED)
    if model is None:
        return name, dict(reads)
    scored = method is not None and method.scored and head is None
    return model, {
        at: _without_method(read) if scored else _without_labels(read) for at, read in reads.items()
    }


TASK = "task_type"
TASKS = {"seq_cls": "ForSequenceClassification"}
"""What a task's name puts on the model (modelscope/ms-swift swift/model/register.py:279-302)."""
SAYS_METHOD = ("method", "script.method", "$.method")
"""Where a file that trains by a reward's loss alone says so: its sheet has all that there is, pairs of rows
and one value a row (huggingface/trl f2cd577 trl/trainer/reward_trainer.py:739-778).
"""


def _without_method(read: FileReading) -> FileReading:
    read = _without_labels(read)
    return replace(read, unmodelled=tuple(one for one in read.unmodelled if one[0] not in SAYS_METHOD))


def _lacks_heads(reads: Mapping[str, FileReading]) -> bool:
    """Whether an engine runs it under which such heads were not compared."""
    named = {str(held) for read in reads.values() if (held := read.request.get("engine"))}
    return not all(engine.trains_other_heads for one in named if (engine := find_engine(one)) is not None)


def _head_of_labels(at: str, read: FileReading) -> str | None:
    """What a file that is read as ``at`` puts on the model, by its text or as an example of the library's."""
    if head := TASKS.get(str(read.values.get(TASK))):
        return head
    said = LABELS.search(str(read.values.get(LABELS_PLACE, "")))
    script = re.split(r"[/: ]", at)[-1].removesuffix(".py").removesuffix("_no_trainer")
    return said[0][said[0].index("For") :] if said else EXAMPLES.get(script)


def _read_with_head(name: str, head: str) -> ModelSpec | None:
    from memsheet.catalog.names import bundled_entry
    from memsheet.formulas.model_code.transformers.plan_problems import has_written_layers
    from memsheet.questions.recordings import recording_of
    from memsheet.readers.hf_config import model_on_record, read_hf_config

    entry = bundled_entry(name)
    known = entry["config"].get("architectures") if entry else None
    if entry is None or not known or not OTHER_HEAD.search(known[0]):
        return None
    own, called = [OTHER_HEAD.sub(head, known[0])], name.rpartition("/")[2]
    config = {**entry["config"], "architectures": own}
    try:
        model = read_hf_config(config, name=called, recorder=recording_of)
        held = model.recording is not None or (model.head is not None and model.head.kind == CLASSIFIES)
        if held and model.recording is None and not has_written_layers(model, ""):
            model = model_on_record(config, recording_of, name=called)
    except InputError:
        return None
    note = f"the model is loaded as {own[0]}"
    return replace(model, source=replace(model.source, notes=(*model.source.notes, note))) if held else None


def _without_labels(read: FileReading) -> FileReading:
    told = ((at, value) for at, value in read.unmodelled if at not in (LABELS_PLACE, TASK))
    return replace(read, unmodelled=tuple(told))
