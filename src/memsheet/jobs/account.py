"""account_job(job) → sheets: what every kind of card holds in every phase, out of the sheets of its roles.

Rows begin with the role (``actor/model.layers.*…``); an instant is one of a phase
(``update_actor/backward``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from memsheet.account import account_rank
from memsheet.arith import maximum
from memsheet.errors import InputError
from memsheet.formulas.runtime import outside_tensors
from memsheet.frozen import dataclass, field, replace
from memsheet.jobs.emptied import with_emptied_loads
from memsheet.jobs.forward import forward_items, generation_items
from memsheet.jobs.logits import logits_item, step_items
from memsheet.jobs.read_in_step import read_item, readers_of
from memsheet.jobs.resident import OF_PROCESS, host_bytes, resident_items
from memsheet.plan.device import Cluster, resize_cluster
from memsheet.plan.job import Job, Phase, Residency, Role, Work
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.sheet import NOTHING, OUTSIDE_TENSORS, Bytes, Component, Derived, Instant, Item, Sheet

Stages = Mapping[str, int]
"""The roles of a card, and of each the pipeline stage that the card is of."""


@dataclass(slots=True)
class _Accounted:
    """Sheets of the roles by plan and stage, each accounted once."""

    job: Job
    replays: bool
    known: dict[tuple[str, int, int], Sheet] = field(default_factory=dict)
    plans: list[tuple[str, Plan]] = field(default_factory=list)

    def recomputed_plan(self, role: Role, plan: Plan) -> Plan:
        """``plan`` with every layer recomputed, the same object for ``role`` as long as it is the same."""
        made = replace(plan, recompute=replace(plan.recompute, mode=RecomputeMode.FULL))
        known = next((held for name, held in self.plans if name == role.name and held == made), None)
        if known is None:
            self.plans.append((role.name, made))
        return known or made

    def sheet_of(self, role: Role, stage: int, plan: Plan | None = None) -> Sheet:
        plan = plan or role.plan
        key = role.name, stage, id(plan)
        if key not in self.known:
            self.known[key] = _role_sheet(self.job, role, plan, stage, replays=self.replays)
        return self.known[key]


def _role_sheet(job: Job, role: Role, plan: Plan, stage: int, *, replays: bool) -> Sheet:
    """The sheet of a role. Raises InputError whose fields say which role it is of."""
    try:
        return account_rank(role.model, plan, _cards_of(role, job.cluster), stage, replays=replays)
    except InputError as error:
        named = [
            one if one.field.startswith("roles.") else replace(one, field=f"roles.{role.name}.{one.field}")
            for one in error.problems
        ]
        raise InputError(named) from None


def _cards_of(role: Role, cluster: Cluster | None) -> Cluster | None:
    return resize_cluster(cluster, role.group) if cluster else None


def account_job(job: Job, *, replays: bool = True) -> tuple[Sheet, ...]:
    """One sheet a distinct card. ``replays``: as of ``account.account_rank``.

    Raises InputError where something of a role is not modelled.
    """
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for card in range(job.count):
        alike.setdefault(tuple(_roles_on(job, card).items()), []).append(card)
    accounted = _Accounted(job, replays)
    return tuple(_card_sheet(accounted, dict(held), cards) for held, cards in alike.items() if held)


def _roles_on(job: Job, card: int) -> Stages:
    """The roles of a card by name, with their pipeline stages."""
    found = {}
    for role in job.roles:
        first, count = role.cards
        if first <= card < first + count:
            found[role.name] = (card - first) % role.group * int(role.plan.mesh.pp) // role.group
    return found


def _card_sheet(accounted: _Accounted, stages: Stages, cards: list[int]) -> Sheet:
    roles = [role for role in accounted.job.roles if role.name in stages]
    rows: dict[tuple[Component, str], Item] = {}
    order: list[Instant] = []
    host = 0
    phases = [
        phase
        for phase in accounted.job.phases
        if phase.active in (None, *stages) or _is_anyone_there(phase, roles)
    ]
    for phase in phases:
        parts = {role.name: _role_items(accounted, phase, role, stages[role.name]) for role in roles}
        steps = _instants_of(parts.get(phase.active or "", ()))
        order += [step.of_phase(phase.name) for step in steps]
        joined = next((role for role in roles if role.name == phase.joined), None)
        beside = _saved_at_once(accounted.sheet_of(joined, stages[joined.name]), steps) if joined else None
        for item in _phase_rows(phase, roles, parts, steps, beside):
            known = rows.get((item.component, item.path))
            rows[item.component, item.path] = _with_more(known, item) if known else item
        held = (
            host_bytes(role, accounted.sheet_of(role, stages[role.name]), phase.residency_of(role))
            for role in roles
        )
        host = max(host, sum(held))
    own = [accounted.sheet_of(role, stages[role.name]) for role in roles]
    return Sheet(
        rank=cards[0],
        stage=max(stages.values()),
        same_as=tuple(cards[1:]),
        items=with_emptied_loads(rows.values(), phases, roles, accounted.job.cluster),
        host_bytes=host + sum(sheet.host_bytes for sheet in own),
        notes=tuple(dict.fromkeys(note for sheet in own for note in sheet.notes)),
        phased=tuple(order),
        gradients=own[0].gradients if len(own) == 1 else None,
    )


def _is_anyone_there(phase: Phase, roles: list[Role]) -> bool:
    return any(phase.residency_of(role) is not Residency.ABSENT for role in roles)


def _with_more(known: Item, item: Item) -> Item:
    """An item with what another of its path has; two of one phase add up."""
    added = {when: known.at.get(when, NOTHING) + size for when, size in item.at.items()}
    return replace(known, at={**known.at, **added})


def _role_items(accounted: _Accounted, phase: Phase, role: Role, stage: int) -> tuple[Item, ...]:
    """What a role has on the card in a phase: at every instant of its work, or at LOAD where it rests; but
    for weights that are another's own.
    """
    how = phase.residency_of(role)
    if role.name != phase.active:
        items = resident_items(role, accounted.sheet_of(role, stage), how, accounted.job.cluster)
        return _without_weights(items, role) if role.weights_of else items
    sheet = accounted.sheet_of(role, stage, phase.plan)
    last = stage == int(role.plan.mesh.pp) - 1  # logits are the last stage's
    reads, asked = phase.work is Work.FORWARD, phase.logits if last else None
    logits = (logits_item(role, phase.plan or role.plan, asked, learnt=not reads),) if asked else ()
    if reads:
        items = (*forward_items(role, sheet, how), *logits)
        return (*items, *_pass_slack(accounted, role, items))
    late = how is Residency.PARAMETERS
    if not logits:
        own = tuple(sheet.items)
        if role.weights_of:
            own = _without_weights(own, role)
            own = own if _has_pool(role) else _generated_items(accounted, role, stage, own)
        return tuple(_with_late_states(own)) if late else own
    assert phase.logits is not None
    step = phase.plan or role.plan
    items = tuple(step_items(role, step, sheet, *logits, phase.logits))
    items = (*items, *_read_items(accounted, phase, step, items, stage))
    items = tuple(_with_late_states(items)) if late else items
    shares = tuple(_pass_slack(accounted, role, items))
    return (*items, *(_slack_of_both(item, sheet, items) for item in shares))


def _read_items(
    accounted: _Accounted, phase: Phase, step: Plan, items: tuple[Item, ...], stage: int
) -> Iterator[Item]:
    """What passes of frozen models over the rows of a step take beyond ``items``, which are its own."""
    if phase.logits is None:
        return
    for reader in readers_of(accounted.job, phase):
        plan = accounted.recomputed_plan(reader, replace(reader.plan, workload=step.training))
        found = read_item(reader, plan, accounted.sheet_of(reader, stage, plan), phase.logits, items)
        if found is not None:
            yield found


def _generated_items(
    accounted: _Accounted, role: Role, stage: int, items: tuple[Item, ...]
) -> tuple[Item, ...]:
    """``items`` of a model that generates with the tensors of another, with what autocast makes of them."""
    owner = next(one for one in accounted.job.roles if one.name == role.weights_of)
    if not owner.plan.precision.casts:
        return items
    serving = role.plan.serving
    rows, tokens = serving.max_sequences or 1, serving.prompt_tokens or serving.max_model_len or 1
    workload = replace(owner.plan.training, microbatch=rows, seq_len=tokens)
    plan = accounted.recomputed_plan(role, replace(owner.plan, workload=workload))
    return tuple(generation_items(owner, accounted.sheet_of(owner, stage, plan), int(rows), items))


def _without_weights(items: tuple[Item, ...], role: Role) -> tuple[Item, ...]:
    """``items`` without the model's own tensors; a server's other buffers are its own."""
    without = (Component.PARAMETERS,) if _has_pool(role) else OF_OWNER
    return tuple(item for item in items if item.component not in without)


def _has_pool(role: Role) -> bool:
    """Whether it is a server, with a share of the card and code of its own."""
    return role.plan.cache.memory_fraction is not None


OF_OWNER = (Component.PARAMETERS, Component.BUFFERS)


def _with_late_states(items: Iterable[Item]) -> Iterator[Item]:
    """A step whose optimizer's states come to the card for the optimizer alone."""
    for item in items:
        if item.component is not Component.OPTIMIZER_STATES:
            yield item
        elif Instant.OPTIMIZER_STEP in item.at:
            yield replace(item, at={Instant.OPTIMIZER_STEP: item.at[Instant.OPTIMIZER_STEP]})


def _slack_of_both(share: Item, sheet: Sheet, items: tuple[Item, ...]) -> Item:
    """No less is reserved than by the same step without whole logits, ``sheet``, whose allocations may have
    been played.
    """
    at: dict[Instant, Bytes] = {}
    for when, size in share.at.items():
        own = [
            one.at[when]
            for one in sheet.items
            if one.component is Component.ALLOCATOR_SLACK and when in one.at
        ]
        more = max(0, _tensors_at(items, when) - _tensors_at(sheet.items, when))
        ends = ([int(getattr(one, end)) - more for one in own] for end in ("low", "value", "high"))
        at[when] = Bytes(
            *(
                max([int(share_end), *left])
                for share_end, left in zip((size.low, size.value, size.high), ends, strict=True)
            )
        )
    return replace(share, at=at)


def _tensors_at(items: Iterable[Item], when: Instant) -> int:
    return sum(
        int(one.at[when].value) for one in items if when in one.at and one.component not in OUTSIDE_TENSORS
    )


def _pass_slack(accounted: _Accounted, role: Role, items: tuple[Item, ...]) -> Iterator[Item]:
    """What the allocator reserves beyond the tensors of a pass, as a share of them: nobody replays logits."""
    where = _cards_of(role, accounted.job.cluster)
    tensors: dict[Instant, int] = {}
    for item in items:
        if item.component not in OUTSIDE_TENSORS:
            for when, size in item.at.items():
                tensors[when] = tensors.get(when, 0) + int(size.value)
    beside = outside_tensors(role.plan, where, dict(tensors))
    yield from (item for item in beside if item.component is Component.ALLOCATOR_SLACK)


def _instants_of(items: Iterable[Item]) -> tuple[Instant, ...]:
    """Instants of a role's own work; of a phase in which none works, LOAD."""
    there = {instant for item in items for instant in item.at}
    return tuple(instant for instant in Instant if instant in there) or (Instant.LOAD,)


def _phase_rows(
    phase: Phase,
    roles: list[Role],
    parts: Mapping[str, tuple[Item, ...]],
    steps: tuple[Instant, ...],
    beside: Item | None = None,
) -> Iterator[Item]:
    """The items of a phase, with the role before their paths and the phase before their instants. ``beside``:
    what a joined role's step has.
    """
    if beside is not None:
        joined = {when.of_phase(phase.name): size for when, size in beside.at.items()}
        yield replace(beside, path=f"{phase.joined}/{beside.path}", at=joined)
    spread = {
        role.name: parts[role.name] if role.name == phase.active else _over_phase(parts[role.name], steps)
        for role in roles
    }
    for role in roles:
        others = [spread[one.name] for one in roles if one.process == role.process and one is not role]
        before = [spread[one.name] for one in roles[: roles.index(role)] if one.process == role.process]
        for item in spread[role.name]:
            at = _once_a_process(item, others, before) if item.component in OF_PROCESS else item.at
            if at:
                at = {instant.of_phase(phase.name): size for instant, size in at.items()}
                yield replace(item, path=f"{role.name}/{item.path}", at=at)
    for extra in phase.extras:
        owner = extra.role or phase.active or roles[0].name
        if owner not in parts:
            continue  # what its work has beside is where it is
        there = [one for one in steps if not extra.instants or one in extra.instants]
        at = {instant.of_phase(phase.name): extra.size for instant in there}
        if at:
            yield Item(extra.component, f"{owner}/{extra.path}", at, Derived(extra.why))


def _saved_at_once(sheet: Sheet, steps: tuple[Instant, ...]) -> Item:
    """What a role's own step has beyond what rests, where another's step is saved with it: from half of it,
    as neither goes back before both have run forward.
    """
    rests = sheet.at(sheet.instants[0]).value
    most = max(int(sheet.at(when).value - rests) for when in sheet.instants)
    why = "saved activations and gradients, which are there at once"
    size = Bytes(most // 2, most, most)
    return Item(Component.SAVED_ACTIVATIONS, "at_once", dict.fromkeys(steps, size), Derived(why))


def _over_phase(items: tuple[Item, ...], steps: tuple[Instant, ...]) -> tuple[Item, ...]:
    """What rests is there at every instant of a phase."""
    return tuple(replace(item, at=dict.fromkeys(steps, item.at[Instant.LOAD])) for item in items)


def _once_a_process(
    item: Item, others: list[tuple[Item, ...]], before: list[tuple[Item, ...]]
) -> dict[Instant, Bytes]:
    """A context or a workspace of a process, which its roles share: with the role that has the
    most of it, the first of several.
    """
    found = {}
    for instant, size in item.at.items():
        if _most_of(item, instant, others).value > size.value:
            continue
        if before and _most_of(item, instant, before).value == size.value and _is_held(item, instant, before):
            continue
        found[instant] = size
    return found


def _most_of(item: Item, instant: Instant, parts: list[tuple[Item, ...]]) -> Bytes:
    sizes = [
        one.at[instant]
        for items in parts
        for one in items
        if (one.component, one.path) == (item.component, item.path) and instant in one.at
    ]
    most = NOTHING
    for size in sizes:
        most = Bytes(
            maximum(most.low, size.low), maximum(most.value, size.value), maximum(most.high, size.high)
        )
    return most


def _is_held(item: Item, instant: Instant, parts: list[tuple[Item, ...]]) -> bool:
    return any(
        (one.component, one.path) == (item.component, item.path) and instant in one.at
        for items in parts
        for one in items
    )
