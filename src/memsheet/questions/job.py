"""What a job of several models needs on the same cards, phase by phase."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from memsheet.account import account_rank
from memsheet.budget import Answer, answer_of, judge_on, verdict_on_start
from memsheet.catalog.stated_bases import REWARD_HEAD
from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.frozen import replace
from memsheet.guard import read_json
from memsheet.jobs.account import account_job
from memsheet.jobs.document import SCHEMA, VALUES, WrittenJob, WrittenPhase, WrittenRole, read_job
from memsheet.jobs.first_step import first_step
from memsheet.jobs.templates import TEMPLATES, job_of_template
from memsheet.jobs.templates.planned import Sizes
from memsheet.plan.device import Cluster, resize_cluster
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.job import Job, Phase, Role, Work
from memsheet.plan.model import ModelSpec
from memsheet.plan.options import Document, TemplateOptions
from memsheet.questions.accounted import with_draft_model
from memsheet.questions.question_parts import REPLAY, SHARE, parse_question, read_named_model
from memsheet.readers.label_heads import without_vocabulary
from memsheet.report.answer import public_answer
from memsheet.report.shared.jobs.phases import LACKS, fullest_instant
from memsheet.report.shared.words import INSTANTS
from memsheet.resolve import Resolved, resolve_request
from memsheet.sheet import Bytes, Sheet
from memsheet.units import format_bytes

MACHINES = ("gpus", "nodes", "per_node", "host_memory", "cluster")
NOWHERE: Mapping[str, Any] = {}
NO_MODELS: Mapping[str, ModelSpec] = {}
OF_SHEET = "memsheet/sheet/1"
COMMANDS: Mapping[str, str] = {
    "verl": "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B",
    "trl": "trl grpo --model_name_or_path Qwen/Qwen3-8B --use_vllm true",
    **{f"{tool}{method}": f"trl {method} --model_name_or_path Qwen/Qwen3-8B" for method in ("sft", "dpo", "kto", "reward", "rloo", "orpo", "cpo") for tool in ("trl-", "")},
    "ppo": "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B critic.model.path=Qwen/Qwen3-8B algorithm.adv_estimator=gae",
    "openrlhf": "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --train.colocate_all",
    "slime": "python3 train.py --colocate --hf-checkpoint Qwen/Qwen3-4B", "nemo": "python examples/run_grpo.py --config grpo.yaml",
    "swift": "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B",
}  # fmt: skip
"""Of programs that have no template, how one is started, by a name or its first word."""
OF_VALUES = "it gives one value of each token"
AFTER_FIRST = "phases are those of a step after the first, when the optimizer's states are there"
WITH_OUTPUT = "is counted with the output matrix that its head of one value lacks"
RECOMPUTED = {"recompute.mode": "full"}
"""How the step is asked whose forward is a pass without gradients."""


def job(
    document: Document | str | PathLike[str],
    *,
    gpus: str | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    host_memory: str | None = None,
    cluster: Document | str | PathLike[str] | None = None,
    **options: Unpack[TemplateOptions],
) -> Answer:
    """What every GPU holds in every phase of a job of several models, and whether all of them fit.

    ``document``: an object or file of ``memsheet/job/1``, or the name of a template ("trl-grpo"), whose
    options are the further keywords (``model``, ``max_completion_length`` …). ``gpus`` and the rest describe
    the cluster, in place of what the document says. Instants of the sheets are ``phase/instant``. Raises
    InputError with every problem.
    """
    where = dict(zip(MACHINES, (gpus, nodes, per_node, host_memory, cluster), strict=True))
    return public_answer(answer_job(document_of(document, {**where, **options}), where))


def document_of(
    named: Mapping[str, Any] | str | PathLike[str], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The document that a file or a template's name stands for. Raises InputError for what is neither."""
    said = {key: value for key, value in options.items() if value is not None}
    if isinstance(named, str) and named in TEMPLATES:
        return job_of_template(named, said, sizes_of_model)
    if isinstance(named, str) and not Path(named).suffix and not Path(named).exists():
        words = named.lower().replace("_", "-")
        hint = COMMANDS.get(words) or COMMANDS.get(words.partition("-")[0])
        told = (
            f"its launch is asked about as it is typed: memsheet check --gpus 8xH100-80GB -- {hint}"
            if hint
            else f"one of {', '.join(TEMPLATES)}"
        )
        raise input_error("job", named, "is no template and no file", told)
    extra = [key for key in said if key not in MACHINES]
    raise_if_problems(
        Problem(
            field=key, value=said[key], reason="is an option of a template", hint="say it in the document"
        )
        for key in extra
    )
    if isinstance(named, Mapping):
        return named
    document = read_json(Path(named))
    asked = document.get("job") if document.get("schema") == OF_SHEET else None
    return asked if isinstance(asked, Mapping) else document  # of a sheet the job that it is of


def sizes_of_model(name: str) -> Sizes:
    """What a template needs of a model besides its name. Raises InputError for one that nobody knows."""
    model = read_named_model(name, "train", None)
    return Sizes(vocab=model.vocab, hidden=model.hidden, layers=model.layers)


def answer_job(
    document: Mapping[str, Any],
    where: Mapping[str, Any] = NOWHERE,
    *,
    slack: str = REPLAY,
    known: Mapping[str, ModelSpec] = NO_MODELS,
    any_release: bool = False,
) -> Answer:
    """The answer about a document of ``memsheet/job/1``. ``where``: the machines, in place of its own;
    ``slack``: as of ``accounted.answer_for_model``; ``known``: by their names, models as they stand in for
    what is trained, and for what is served where nobody can account it; ``any_release``: servers whose
    release the document does not say are of any.
    """
    cluster = _cluster_of(document, where)
    written = read_job(document, cluster.count if cluster else None)
    found, resolved = resolve_job(written, cluster, known)
    sheets = account_job(found, replays=slack != SHARE)
    verdict = judge_on(sheets, cluster) if cluster else None
    if verdict is not None:
        worst = next(sheet for sheet in sheets if sheet.rank == verdict.rank)
        verdict = replace(verdict, instant=fullest_instant(worst), largest=())
    unsaid = {role.name for role in written.roles if any_release and not role.plan.get("engine_version")}
    short = dict(_start_shortages(found, unsaid)) if verdict else {}
    for lacking in short.values():
        verdict = verdict_on_start(verdict, lacking) if verdict else None
    main = next((role for role in found.roles if role.trained), found.roles[0])
    answer = answer_of(main.model, Resolved(main.plan, ()), cluster, sheets, verdict)
    of_values = {role.name for role in written.roles if role.head == VALUES}
    assumed = tuple(
        f"{name}: {line.replace(f'; {REWARD_HEAD}', '') if name in of_values else line}"
        for name, one in resolved.items()
        for line in one.assumed
    )
    notes = tuple(f"{role.name}: {note}" for role in found.roles for note in role.model.source.notes)
    return replace(
        answer,
        assumed=(*written.assumed, *assumed),
        notes=(
            *written.notes,
            *_shortage_words(short),
            *_job_notes(found, of_values),
            _first_step_words(found, sheets),
            *notes,
        ),
        job={"schema": SCHEMA, **{key: value for key, value in document.items() if key != "schema"}},
        seeks_changes=False,
    )


def _start_shortages(found: Job, unsaid: Container[str]) -> Iterator[tuple[str, Bytes]]:
    """What the pools of servers lack for one sequence of their longest, by role: they do not start then.
    ``unsaid``: roles of any release, which are sure not to where weights and one sequence alone are more than
    the share: what else they measure differs by release.
    """
    from memsheet.formulas.serving.servers import server_facts

    for role in found.roles:
        if role.serves and found.cluster is not None:
            part = resize_cluster(found.cluster, role.group)
            sheets = tuple(account_rank(role.model, role.plan, part, at) for at in range(role.plan.mesh.pp))
            facts = server_facts(role.model, role.plan, part, sheets)
            short, sums = facts.get("short_bytes"), facts.get("budget")
            if short is not None and sums and role.name in unsaid:
                sequence = short.low + sums["kv_cache"].high
                least = int(sums["weights"].low + sequence) - _share_bytes(sums)
                short = replace(short, low=min(short.low, least))
            if short is not None:
                yield role.name, short


def _share_bytes(sums: Mapping[str, Any]) -> int:
    """What a server's share is at the most: of the card, or of what is free before it loads."""
    of_card = sums.get("requested_bytes")
    return (
        int(sums["free_before_loading"].high * sums["memory_fraction"]) if of_card is None else int(of_card)
    )


def _shortage_words(short: Mapping[str, Bytes]) -> Iterator[str]:
    for name, lacking in short.items():
        if lacking.high > 0:
            size = format_bytes(int(lacking.high))
            yield f"{name}{LACKS}{size} for one sequence of its longest: it needs a larger share"


def _job_notes(found: Job, of_values: Container[str]) -> Iterator[str]:
    if any(role.serves for role in found.roles) and any(role.trained for role in found.roles):
        yield "what must fit is the device's total: a sleeping server's memory stays in torch's own counters"
    for role in found.roles:
        if role.name in of_values and role.model.head.kind != "none":
            yield f"{role.name} {WITH_OUTPUT}"


def _first_step_words(found: Job, sheets: tuple[Sheet, ...]) -> str:
    """Which step the phases are of, and what the first needs of the card that is fullest in it."""
    firsts = [one for sheet in sheets if (one := first_step(found, sheet)) is not None]
    if not firsts:
        return AFTER_FIRST
    worst = max(firsts, key=lambda one: one.size.value)
    made = " and ".join(f"{name}'s {format_bytes(size)}" for name, size in worst.made.items())
    told = f"the first needs {format_bytes(int(worst.size.value))}, most in {INSTANTS[worst.instant]}"
    needs, cluster = max(int(sheet.device.value) for sheet in sheets), found.cluster
    if cluster is not None and int(worst.size.value) <= cluster.device.framework_low_bytes < needs:
        told += ", and is expected to fit where the second is not"
    return f"{AFTER_FIRST}, of which {made} are made by the first update: {told}"


def _cluster_of(document: Mapping[str, Any], where: Mapping[str, Any]) -> Cluster | None:
    said = {key: where.get(key) for key in MACHINES}
    if said["gpus"] is None and said["cluster"] is None:
        said = {key: document.get(key) if said[key] is None else said[key] for key in MACHINES}
    return parse_question("train", None, {**said, "parameters": "1"})[2]


def resolve_job(
    written: WrittenJob, cluster: Cluster | None, known: Mapping[str, ModelSpec] = NO_MODELS
) -> tuple[Job, Mapping[str, Resolved]]:
    """The job with whole plans, and of each role what its plan took for granted.

    Raises InputError with the problems of every role.
    """
    problems: list[Problem] = []
    roles: dict[str, _ResolvedRole] = {}
    for role in written.roles:
        try:
            roles[role.name] = _read_role(role, cluster, known)
        except InputError as error:
            problems += [replace(one, field=f"roles.{role.name}.{one.field}") for one in error.problems]
    raise_if_problems(problems)
    phases = []
    for phase in written.phases:
        try:
            phases.append(_read_phase(phase, roles))
        except InputError as error:
            problems += [replace(one, field=f"{phase.name}.{one.field}") for one in error.problems]
    raise_if_problems(problems)
    every = tuple(one.role for one in roles.values())
    found = Job(name=written.name, cluster=cluster, roles=every, phases=tuple(phases))
    return found, {name: one.resolved for name, one in roles.items()}


class _ResolvedRole:
    """A role with the request that its plan came of."""

    def __init__(
        self, role: Role, resolved: Resolved, request: Mapping[str, Any], cluster: Cluster | None
    ) -> None:
        self.role, self.resolved, self.request, self.cluster = role, resolved, request, cluster


def _read_role(role: WrittenRole, cluster: Cluster | None, known: Mapping[str, ModelSpec]) -> _ResolvedRole:
    task = str(role.plan["task"])
    model, request, _, told = parse_question(task, role.model, {"plan": dict(role.plan)})
    spec = with_draft_model(_model_of_role(model, task, request.get("engine"), known), request)
    spec = (without_vocabulary(spec, OF_VALUES) or spec) if role.head == VALUES else spec
    count = role.cards[1] if role.cards else cluster.count if cluster else 1
    part = resize_cluster(cluster, _group_of(request, count)) if cluster else None
    resolved = _resolve_role(request, spec, part, told["assumed"], frozen=not role.trained)
    first = role.cards[0] if role.cards else 0
    if cluster is None and role.cards is None:
        count = int(resolved.plan.mesh.gpus)
    made = Role(
        name=role.name, model=spec, plan=resolved.plan, cards=(first, count), trained=role.trained, process=role.process, keeps_cache=role.keeps_cache,
        weights_of=role.weights_of,
    )  # fmt: skip
    if count % made.group:
        raise input_error("plan.mesh", made.group, f"cards of one copy do not divide {count}")
    return _ResolvedRole(made, resolved, request, part)


def _model_of_role(model: Any, task: str, engine: object, known: Mapping[str, ModelSpec]) -> ModelSpec:
    if task == "train" and model in known:
        return known[model]
    try:
        return read_named_model(model, task, engine)
    except InputError:
        if model not in known:
            raise
        return known[model]


def _group_of(request: Mapping[str, Any], count: int) -> int:
    """Cards of one copy: of a server those of its degrees, further ones hold further copies."""
    if request.get("task") != "infer":
        return count
    degrees = [request.get(f"mesh.{axis}") or 1 for axis in ("tp", "pp")]
    return int(degrees[0]) * int(degrees[1])


def _resolve_role(
    request: Mapping[str, Any],
    spec: ModelSpec,
    cluster: Cluster | None,
    assumed: tuple[str, ...] = (),
    *,
    frozen: bool = False,
) -> Resolved:
    found = resolve_request(request, spec, cluster, frozen=frozen)
    raise_if_problems(unsupported_choices(found.plan, cluster, spec) if cluster else ())
    return replace(found, assumed=(*assumed, *found.assumed))


def _read_phase(phase: WrittenPhase, roles: Mapping[str, _ResolvedRole]) -> Phase:
    active = roles.get(phase.active or "")
    changed = parse_question(active.role.plan.task, "", {"plan": dict(phase.plan)})[1] if active else {}
    changed = {key: value for key, value in changed.items() if key != "task" and key[0] != "@"}
    if phase.work is Work.FORWARD:
        changed |= RECOMPUTED
    plan = None
    if active and changed:
        whole = {**active.request, **changed}
        if "microbatch" in changed or "seq_len" in changed:
            whole.pop("global_batch", None)
        still = not active.role.trained
        plan = _resolve_role(whole, active.role.model, active.cluster, frozen=still).plan
    return Phase(
        name=phase.name, active=phase.active, work=phase.work, plan=plan, residents=phase.residents, logits=phase.logits, extras=phase.extras,
        joined=phase.joined,
    )  # fmt: skip
