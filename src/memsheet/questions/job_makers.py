"""What makes a job of several models of a file's values, by the format that they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.budget import Answer, worst_sheet
from memsheet.errors import InputError
from memsheet.exchange.formats.transformers import OF_METHOD
from memsheet.exchange.formats.trl import METHOD, is_guessed_method
from memsheet.exchange.formats.verl.losses import ROLES
from memsheet.exchange.formats.verl.strategies import RELEASE, foreign_engine, sequence_ranks
from memsheet.exchange.shared.colocated_server import SHARE
from memsheet.exchange.shared.file_format import UNSET, FileReading
from memsheet.exchange.shared.method_names import NAMED
from memsheet.exchange.shared.script_places import (
    COLOCATED,
    COPY,
    LOADED_OTHERWISE,
    OF_TRAINER,
    SCRIPT,
    SERVED,
)
from memsheet.formulas.serving.kv_cache import caching_layers, kv_elements_per_token
from memsheet.frozen import replace
from memsheet.jobs.templates.areal import areal_job
from memsheet.jobs.templates.factory_ppo import factory_ppo_document
from memsheet.jobs.templates.nemo_rl import nemo_rl_job
from memsheet.jobs.templates.openrlhf import openrlhf_job
from memsheet.jobs.templates.planned import JobDraft, Sizes, TrainedBytes
from memsheet.jobs.templates.preferences import (
    AXOLOTL,
    FACTORY,
    NOTHING_SAID,
    SCRIPTS,
    SWIFT,
    TRL,
    preference_document,
)
from memsheet.jobs.templates.prime_rl import prime_rl_job
from memsheet.jobs.templates.roll import roll_job
from memsheet.jobs.templates.slime import slime_job
from memsheet.jobs.templates.swift import swift_gkd_job, swift_grpo_job
from memsheet.jobs.templates.swift_megatron import swift_megatron_job
from memsheet.jobs.templates.swift_rollout import answer_tokens
from memsheet.jobs.templates.trl_colocated import with_mode_of_release
from memsheet.jobs.templates.trl_students import STUDENTS, regressing_document, student_document
from memsheet.jobs.templates.trl_values import (
    ANSWERS_OF,
    OF_ANSWERS,
    OF_METHODS,
    ONLINE,
    asynchronous_document,
    distilling_document,
    generating_document,
    online_document,
    ppo_document,
)
from memsheet.jobs.templates.unsloth import unsloth_grpo_document
from memsheet.jobs.templates.verl import (
    exchanged_keys,
    has_shorter_rows,
    open_words,
    unsaid_longest,
    verl_document,
    with_machines_of,
    with_stated_rows,
    words_of_pictures,
    words_of_unknown_sizes,
)
from memsheet.plan.document import model_reference, plan_document
from memsheet.plan.model import Attention
from memsheet.plan.workload import Training
from memsheet.questions.named_models import model_of
from memsheet.sheet import Component, Instant

VERL, OPENRLHF, SLIME, NEMO_RL = "verl", "openrlhf", "slime", "nemo-rl"
PRIME_RL, AREAL, ROLL = "prime-rl", "areal", "roll"
NEMO, ALIGNED_BY = "nemo", "$.method"
"""Names of formats."""
ACCOUNTED = (SHARE, f"{SCRIPT}.{COLOCATED}", "loss", f"{SCRIPT}.loss_type")
"""A server on the same cards, and the loss of supervised fine-tuning."""


def _roles_of_launch(read: FileReading, answer: Answer, ask: Mapping[str, Any]) -> JobDraft | None:
    values = with_machines_of(read.values, answer.cluster.per_node, answer.cluster.nodes) if answer.cluster else read.values  # fmt: skip
    values, plan = {**values, RELEASE: read.release}, plan_document(answer.plan)
    if isinstance(length := ask.get("told_length"), int):
        values, plan = with_stated_rows(values, plan, length)
    found = verl_document(values, plan, model_reference(answer.model), _sizes_of(answer))
    if found is None:
        return None
    own, foreign = unsaid_longest(values), foreign_engine(values)
    over = (f"{foreign} says for itself what is divided and what leaves the cards",) if foreign else ()
    away = tuple(name for name, role in found["roles"].items() if role["plan"]["task"] == "train")
    left = (*open_words(values), *words_of_unknown_sizes(at for at, _ in read.unknown))
    left += words_of_pictures(values) if _sees_pictures(answer) else ()
    return JobDraft(
        found, left, has_shorter_rows(values), over, elsewhere=away if foreign else (),
        unsaid_longest=own, accounted=exchanged_keys(values, _sizes_of(answer)), row_ranks=sequence_ranks(values) or 1,
        length_flag="--seq-len",
    )  # fmt: skip


def _sees_pictures(answer: Answer) -> bool:
    """Whether the model that is named has a tower, which the sheet may be without."""
    try:
        named = model_of(model_reference(answer.model))
    except InputError:
        named = None
    return bool(answer.model.towers or (named and named.towers))


def _of_launcher(
    make: Callable[..., JobDraft | None],
) -> Callable[[FileReading, Answer, Mapping[str, Any]], JobDraft | None]:
    """What makes the job of a launcher that says all of its models."""
    return lambda read, answer, _: make(
        read.values, plan_document(answer.plan), model_reference(answer.model), _sizes_of(answer)
    )


def _sizes_of(answer: Answer) -> Sizes:
    model = answer.model
    mixers = list(model.mixers())
    plain = [one for one in mixers if isinstance(one, Attention)]
    if len(plain) < len(mixers):
        plain = []
    return Sizes(
        vocab=model.vocab,
        hidden=model.hidden,
        layers=model.layers,
        queries=max((one.heads * one.head_dim for one in plain), default=0),
        keys=max((one.kv_heads * one.head_dim for one in plain), default=0),
        key_heads=min((one.kv_heads for one in plain), default=0),
    )


def _job_of_recipe(read: FileReading, answer: Answer, ask: Mapping[str, Any]) -> JobDraft | None:
    """Of TRL's YAML or flags."""
    made = _job_of_method(read, str(dict(read.unmodelled)[METHOD]), read.values, answer, ask)
    if made is not None and (named := read.values.get(NAMED)):
        notes = (*made.document.get("notes", ()), f"it trains by {named}, as the file's name says")
        return made._replace(document={**made.document, "notes": list(notes)})
    if made is None or not is_guessed_method(read.values):
        return made
    over = (*made.over_words, MAY_BE_ANOTHER)
    return made._replace(over_words=over, elsewhere=(*made.elsewhere, "reference"))


MAY_BE_ANOTHER = (
    "which method trains is not said: counted as DPO, by a key that ORPO and CPO have as well, which have no "
    "reference"
)


def _job_of_script(read: FileReading, answer: Answer, ask: Mapping[str, Any]) -> JobDraft | None:
    """Of a script that calls one of TRL's trainers; Unsloth puts losses of its own in their place."""
    if read.values.get(f"{SCRIPT}.unsloth") is True:
        return _job_of_unsloth(read, answer)
    inside = tuple(f"{SCRIPT}.{name}." for name in (OF_METHOD, OF_TRAINER))
    own = {
        at.removeprefix(before): model_reference(answer.model) if held == COPY else held
        for at, held in read.values.items()
        for before in inside
        if at.startswith(before)
    }
    plain = {at: held for at, held in read.values.items() if not at.startswith(f"{SCRIPT}.")}
    kept = {"max_length": read.values[at]} if (at := f"{SCRIPT}.max_length") in read.values else {}
    made = _job_of_method(
        read, str(read.values.get(f"{SCRIPT}.{METHOD}")), {**plain, **kept, **own}, answer, ask
    )
    otherwise = own.get(LOADED_OTHERWISE)
    if made is None or not otherwise:
        return made
    words = (
        f"{', '.join(otherwise)} is loaded in another width than the model that trains, and counted in its"
    )
    away = ("reference", "teacher", "reward")
    return made._replace(open_words=(*made.open_words, words), elsewhere=away, unbounded=True)


def _job_of_unsloth(read: FileReading, answer: Answer) -> JobDraft | None:
    """Of Unsloth's GRPO; nothing of its other methods."""
    if read.values.get(f"{SCRIPT}.{METHOD}") != "GRPO" or answer.cluster is None:
        return None
    before = f"{SCRIPT}.{OF_METHOD}."
    own = {at.removeprefix(before): held for at, held in read.values.items() if at.startswith(before)}
    served = {
        at.removeprefix(f"{SCRIPT}."): held
        for at, held in read.values.items()
        if at.startswith(f"{SCRIPT}.{SERVED}.")
    }
    plain = {at: held for at, held in read.values.items() if not at.startswith(f"{SCRIPT}.")}
    held = worst_sheet(answer.sheets).of(Component.PARAMETERS, instant=Instant.LOAD)
    made = unsloth_grpo_document(
        {**plain, **own, **served, "share": read.values.get(f"{SCRIPT}.{COLOCATED}")},
        plan_document(answer.plan), model_reference(answer.model), _sizes_of(answer), _token_elements(answer),
        answer.cluster.device.framework_bytes, int(held.value),
    )  # fmt: skip
    if made is None or not _sees_pictures(answer):
        return made
    return made._replace(open_words=(*made.open_words, PICTURES), unbounded=True)


PICTURES = "what its tower makes of prompts' pictures is not counted"


def _job_of_method(
    read: FileReading, method: str, values: Mapping[str, Any], answer: Answer, ask: Mapping[str, Any]
) -> JobDraft | None:
    plan, model = plan_document(answer.plan), model_reference(answer.model)
    method = AS_GRPO.get(method, method)
    values = with_mode_of_release(values, str(ask.get("engine_version") or read.release or ""))
    elements, sizes, said = _token_elements(answer), _sizes_of(answer), _stated_length(answer)
    if method in STUDENTS:
        return student_document(method, {**values, "@seq_len": said}, plan, model, elements, sizes)
    if method in OF_METHODS:
        return generating_document(method, {**values, "@seq_len": said}, plan, model, elements, sizes)
    if method in REGRESSED:
        return regressing_document({**values, "@seq_len": said}, plan, model, elements)
    if method in ASYNCHRONOUS:
        own = {**values, "@seq_len": _stated_length(answer)}
        return asynchronous_document(own, plan, model, answer.model.vocab)
    if method.lower() == OF_ANSWERS:
        method, values = OF_ANSWERS, {**values, "@seq_len": _stated_length(answer)}
    if method in ANSWERS_OF:
        teacher = next(
            (held for at in TEACHERS if isinstance(held := values.get(at), str) and held != UNSET), None
        )
        return distilling_document(method, values, plan, model, teacher, sizes) if teacher else None
    if method in ONLINE:
        return online_document(method, values, plan, model)
    if method == "PPO":
        return ppo_document(
            {**values, "@seq_len": _stated_length(answer)},
            plan,
            model,
            answer.model.vocab,
            _token_elements(answer),
        )
    return _job_of_preferences(
        TRL,
        read,
        answer,
        fused=values.get("use_liger_kernel") is True,
        given=values.get("ref_model"),
        said=values,
    )


def _token_elements(answer: Answer) -> int:
    """What a token adds to the cache of all layers, in elements."""
    layers = caching_layers(answer.model)
    return sum(count * int(kv_elements_per_token(mixer)) for _, mixer, count in layers)


def _stated_length(answer: Answer) -> int | None:
    """Tokens of a row, where somebody says how many."""
    job = answer.plan.workload
    return int(job.seq_len) if isinstance(job, Training) and job.seq_len and not answer.ladder else None


def requested_nodes(ask: Mapping[str, Any]) -> dict[str, Any]:
    return {key: ask.get(key) for key in ("gpus", "nodes", "per_node", "host_memory", "cluster")}


TEACHERS = ("teacher_model_name_or_path", "teacher_model")
AS_GRPO: Mapping[str, str] = dict.fromkeys(("GMPO", "GRPOWithReplayBuffer"), "GRPO")
"""Trainers that are GRPO's with another loss of the same log-probabilities, or with earlier groups of answers
beside (huggingface/trl f2cd577 trl/experimental/gmpo, grpo_with_replay_buffer).
"""
ASYNCHRONOUS = ("asynchronous GRPO", "AsyncGRPO")
REGRESSED = ("A2PO", "A*-PO")


def _job_of_preferences(
    program: str,
    read: FileReading,
    answer: Answer,
    *,
    fused: bool = False,
    given: Any = None,
    said: Mapping[str, Any] = NOTHING_SAID,
) -> JobDraft | None:
    """A method of pairs or of marked answers. ``given``: what a script gives the trainer as reference;
    ``said``: words of TRL's trainer.
    """
    method = read.form.preferences(read.values)
    if method is None or method.scored:
        return None
    beside = given is not None and answer.plan.adapter is not None
    made = preference_document(
        program,
        replace(method, own_copy=True) if beside and method.reference else method,
        plan_document(answer.plan),
        model_reference(answer.model),
        fused=fused,
        widened_bytes=_widened_bytes(answer) if method.widened and given is None else 0,
        named=given if isinstance(given, str) and given != UNSET else "",
        said=said,
        vocab=answer.model.vocab,
    )
    if made is None:
        return None
    if "reference" not in made["roles"] or given is None:
        return JobDraft(made)
    words = [
        *((BESIDE_ADAPTERS,) if beside else ()),
        *((OPEN_REFERENCE,) if given == UNSET else ()),
    ]
    away = ("reference",) if words else ()
    return JobDraft(made, tuple(words), elsewhere=away, unbounded=given == UNSET)


BESIDE_ADAPTERS = "the trainer is given a reference beside adapters, at which some releases stop"
"""The wheels of TRL 0.15.2 and 0.27.2: trl/trainer/dpo_trainer.py, __init__."""
OPEN_REFERENCE = (
    "which model the reference is the text does not tell: counted as a copy of the one that trains"
)


def _widened_bytes(answer: Answer) -> int:
    """What a copy in fp32 has more than the model that trains."""
    precision = answer.plan.precision
    held = int(worst_sheet(answer.sheets).of(Component.PARAMETERS, instant=Instant.LOAD).high)
    return (
        0
        if precision.master_weights
        else held * (32 - int(precision.parameters.bits)) // int(precision.parameters.bits)
    )


GROUP_OF_TRL, GROUP_OF_VLLM = "trl.", "vllm."
OF_AXOLOTL = "axolotl-grpo"
OF_VLLM = {
    "gpu_memory_utilization": "vllm_gpu_memory_utilization", "tensor_parallel_size": "vllm_tensor_parallel_size", "max_model_len": "vllm_max_model_length",
}  # fmt: skip

OF_TRLS_PAIRS = {"dpo_use_weighting": "use_weighting", "cpo_alpha": "cpo_alpha"}
"""Axolotl's words of TRL's (core/builders/rl.py)."""


def _job_of_axolotl(read: FileReading, answer: Answer, _: Mapping[str, Any]) -> JobDraft | None:
    """Of pairs, or of TRL's GRPO, whose words stand in groups of their own (axolotl-ai-cloud/axolotl 067b021
    src/axolotl/core/trainers/grpo/__init__.py:60-110).
    """
    if read.values.get("rl") == "grpo":
        own = {
            at.removeprefix(GROUP_OF_TRL): held
            for at, held in read.values.items()
            if at.startswith(GROUP_OF_TRL)
        }
        own |= {
            word: held
            for at, word in OF_VLLM.items()
            if (held := read.values.get(f"{GROUP_OF_VLLM}{at}")) is not None
        }
        own |= {
            "@seq_len": _stated_length(answer),
            "gradient_accumulation_steps": read.values.get("gradient_accumulation_steps"),
        }
        plan = plan_document(answer.plan)
        elements, sizes = _token_elements(answer), _sizes_of(answer)
        made = generating_document("GRPO", own, plan, model_reference(answer.model), elements, sizes)
        return made and made._replace(document={**made.document, "name": OF_AXOLOTL})
    said = {word: read.values.get(at) for at, word in OF_TRLS_PAIRS.items()}
    fused = read.values.get("dpo_use_liger_kernel") is True
    return _job_of_preferences(AXOLOTL, read, answer, fused=fused, said=said)


def _job_of_factory(read: FileReading, answer: Answer, _: Mapping[str, Any]) -> JobDraft | None:
    if read.values.get("stage") == "ppo":
        plan, model = plan_document(answer.plan), model_reference(answer.model)
        return factory_ppo_document(read.values, plan, model, _token_elements(answer))
    return _job_of_preferences(FACTORY, read, answer)


OF_SWIFT, SWIFT_MEGATRON = "$.method", "swift-megatron"
"""ms-swift's key of a method, and the name of its format over Megatron-Core."""
SWIFT_STEP = 16
"""Sequences of a step that it fills up where nothing is said (swift/trainers/arguments.py)."""


def _job_of_swift(read: FileReading, answer: Answer, ask: Mapping[str, Any]) -> JobDraft | None:
    """Of ms-swift's ``swift rlhf``; nothing of a fine-tuning."""
    plan, model, method = (
        plan_document(answer.plan),
        model_reference(answer.model),
        read.values.get("rlhf_type", "dpo"),
    )
    if read.values.get(OF_SWIFT) != "rlhf":
        return None
    if method == "ppo":
        return _ppo_of_swift(read, answer, ask)
    make = {"grpo": swift_grpo_job, "gkd": swift_gkd_job}.get(str(method))
    if make is None:
        return _job_of_preferences(SWIFT, read, answer)
    return make(
        read.values, plan, model, _sizes_of(answer), _held_by(answer), token_elements=_token_elements(answer),
        length=_stated_length(answer),
    )  # fmt: skip


def _job_of_swift_megatron(read: FileReading, answer: Answer, _: Mapping[str, Any]) -> JobDraft | None:
    plan, model, said = (
        plan_document(answer.plan),
        model_reference(answer.model),
        _stated_length(answer) is not None,
    )
    return swift_megatron_job(read.values, plan, model, _sizes_of(answer), _held_by(answer), said=said)


def _ppo_of_swift(read: FileReading, answer: Answer, _: Mapping[str, Any]) -> JobDraft | None:
    """TRL's own trainer, with adapters on its critic, too (modelscope/ms-swift 3602360
    swift/pipelines/train/rlhf.py:112, swift/rlhf_trainers/ppo_trainer.py).
    """
    plan, rows = plan_document(answer.plan), int(answer.plan.training.microbatch)
    filled = -(-SWIFT_STEP // (rows * int(answer.plan.mesh.data_parallel)))
    own = {
        **read.values, "@seq_len": _stated_length(answer), "response_length": answer_tokens(read.values),
        "gradient_accumulation_steps": read.values.get("gradient_accumulation_steps") or max(1, filled),
    }  # fmt: skip
    made = ppo_document(
        own,
        plan,
        model_reference(answer.model),
        answer.model.vocab,
        _token_elements(answer),
        adapted_critic=True,
    )
    return made and made._replace(accounted=frozenset({"reward_model", "ref_model"}))


def _held_by(answer: Answer) -> TrainedBytes:
    """What the model that trains holds between its steps."""
    sheet = worst_sheet(answer.sheets)
    rests = (Component.PARAMETERS, Component.MASTER_WEIGHTS, Component.GRADIENTS)
    held = [int(sheet.of(one, instant=Instant.LOAD).value) for one in rests]
    return TrainedBytes(
        held[0], held[1], held[2], int(answer.plan.precision.compute.nbytes(answer.parameters))
    )


MAKERS: Mapping[str, tuple[str, Callable[[FileReading, Answer, Mapping[str, Any]], JobDraft | None]]] = {
    VERL: (ROLES, _roles_of_launch), TRL: (METHOD, _job_of_recipe), SCRIPTS: (f"{SCRIPT}.{METHOD}", _job_of_script),
    AXOLOTL: ("rl", _job_of_axolotl), FACTORY: ("stage", _job_of_factory), OPENRLHF: (ROLES, _of_launcher(openrlhf_job)),
    SLIME: (ROLES, _of_launcher(slime_job)), NEMO_RL: (ROLES, _of_launcher(nemo_rl_job)), PRIME_RL: (ROLES, _of_launcher(prime_rl_job)),
    AREAL: (ROLES, _of_launcher(areal_job)), ROLL: (ROLES, _of_launcher(roll_job)), SWIFT: (OF_SWIFT, _job_of_swift),
    SWIFT_MEGATRON: (OF_SWIFT, _job_of_swift_megatron), NEMO: (ALIGNED_BY, lambda *_: None),
}  # fmt: skip
"""By the name of a format the key that says that further models share the cards, and what makes the job."""
