"""``memsheet/job/1`` read: the roles and phases of a job as they are written, or every problem at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from memsheet.errors import Problem, raise_if_problems
from memsheet.frozen import dataclass
from memsheet.plan.job import OF_SERVERS, OF_TRAINING, Extra, Logits, Residency, Work
from memsheet.readers.fields import Fields
from memsheet.sheet import PHASE_NAME, Bytes, Component, Instant

SCHEMA = "memsheet/job/1"
MOST_ROLES, MOST_PHASES, MOST_EXTRAS = 16, 64, 64
MOST_BYTES = 2**60
MOST_CARDS = 2**20
NAME = re.compile(PHASE_NAME)
TOP = ("schema", "name", "gpus", "nodes", "per_node", "host_memory", "roles", "placement", "phases", "assumed", "notes")  # fmt: skip
OF_ROLE = ("model", "plan", "trained", "process", "keeps_cache", "head", "weights_of")
HEADS = TOKENS, VALUES = "tokens", "values"
"""What a role's head gives of each token: a vocabulary's logits, or one value."""
OF_PHASE = ("name", "active", "work", "plan", "residents", "logits", "items", "joined")
OF_EXTRA = ("component", "path", "bytes", "why", "role", "instants")
SERVING, TRAINING = (
    (Instant.PREFILL, Instant.DECODE),
    (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD, Instant.OPTIMIZER_STEP),
)
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRole:
    """A role as the document has it."""

    name: str
    model: str | None
    plan: Mapping[str, Any]
    trained: bool
    process: str
    keeps_cache: bool
    cards: tuple[int, int] | None
    head: str = TOKENS
    weights_of: str | None = None

    @property
    def serves(self) -> bool:
        return self.plan.get("task") == "infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPhase:
    """A phase as the document has it. ``plan``: what of the active role's is otherwise."""

    name: str
    active: str | None
    work: Work
    plan: Mapping[str, Any]
    residents: Mapping[str, Residency]
    logits: Logits | None
    extras: tuple[Extra, ...]
    joined: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenJob:
    name: str
    gpus: Mapping[str, Any]
    """Of the cluster what the document says: ``gpus``, ``nodes``, ``per_node``, ``host_memory``."""
    roles: tuple[WrittenRole, ...]
    phases: tuple[WrittenPhase, ...]
    assumed: tuple[str, ...]
    notes: tuple[str, ...]


def read_job(document: Mapping[str, Any], count: int | None = None) -> WrittenJob:
    """The job of a document. ``count``: cards that there are, where somebody says how many.

    Raises InputError with everything that is wrong.
    """
    fields = Fields(document)
    if document.get("schema") not in (None, SCHEMA):
        fields.wrong("schema", document["schema"], f"is not {SCHEMA}")
    _refuse_unknown(fields, TOP)
    roles = tuple(_read_roles(fields, count))
    phases = tuple(_read_phases(fields, roles))
    fields.problems += [*_phase_problems(roles, phases), *_fraction_problems(roles, phases)]
    raise_if_problems(fields.problems)
    return WrittenJob(
        name=fields.text("name", default="job"),
        gpus={
            key: document[key] for key in ("gpus", "nodes", "per_node", "host_memory") if document.get(key)
        },
        roles=roles,
        phases=phases,
        assumed=fields.texts("assumed"),
        notes=fields.texts("notes"),
    )


def _refuse_unknown(fields: Fields, known: Iterable[str]) -> None:
    for key in fields.data:
        if key not in known:
            fields.wrong(str(key), None, "is no key of a job", f"one of {', '.join(known)}")


def _read_roles(fields: Fields, count: int | None) -> Iterator[WrittenRole]:
    named, placed = fields.sub("roles"), fields.sub("placement")
    if not named.data or len(named.data) > MOST_ROLES:
        fields.wrong("roles", len(named.data), f"are 1 to {MOST_ROLES} by their names")
        return
    for name in placed.data:
        if name not in named.data:
            placed.wrong(
                str(name), None, "is no role of the job", f"one of {', '.join(map(str, named.data))}"
            )
    for name in named.data:
        role = named.sub(name)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            named.wrong(str(name), None, "is no name of a role", "small letters, digits and _")
            continue
        _refuse_unknown(role, OF_ROLE)
        plan = role.sub("plan").data
        if not plan:
            role.wrong("plan", None, "is missing", 'for example {"task": "train", "engine": "fsdp2"}')
        elif plan.get("task") not in ("train", "infer"):
            role.wrong("plan.task", plan.get("task"), "is neither train nor infer")
        model = role.text("model", default="") or plan.get("model")
        if not model:
            role.wrong("model", None, "is missing", "a bundled name, a path or a hub id")
        yield WrittenRole(
            name=name,
            model=model,
            plan=plan,
            trained=role.flag("trained", default=plan.get("task") == "train"),
            process=role.text("process", default=name),
            keeps_cache=role.flag("keeps_cache", default=False),
            cards=_read_place(placed, name, count),
            head=role.text("head", default=TOKENS, choices=HEADS),
            weights_of=_read_owner(role, named, plan),
        )


def _read_owner(role: Fields, named: Fields, plan: Mapping[str, Any]) -> str | None:
    """The role whose weights a server runs with, None of one that has its own."""
    owner = role.text("weights_of", default="") or None
    if owner is not None and (owner not in named.data or plan.get("task") != "infer"):
        role.wrong("weights_of", owner, "is of a server, and names another role of the job")
    return owner


def _read_place(placed: Fields, name: str, count: int | None) -> tuple[int, int] | None:
    """The first card and how many; None where nothing is said: all of them."""
    if placed.data.get(name) is None:
        return None
    found = placed.counts(name, high=MOST_CARDS)
    if len(found) != 2 or found[1] < 1:
        placed.wrong(name, placed.data[name], "is not a first card and how many", "[0, 8]")
        return None
    if count is not None and sum(found) > count:
        placed.wrong(name, list(found), f"is beyond the {count} cards that there are")
    return found[0], found[1]


def _read_phases(fields: Fields, roles: tuple[WrittenRole, ...]) -> Iterator[WrittenPhase]:
    found = fields.data.get("phases")
    rows = found if isinstance(found, list) and all(isinstance(row, Mapping) for row in found) else []
    if not rows or len(rows) > MOST_PHASES:
        fields.wrong("phases", None, f"are a list of 1 to {MOST_PHASES} objects")
        return
    seen: set[str] = set()
    for number, row in enumerate(rows):
        phase = Fields(row, f"phases[{number}]", fields.problems)
        _refuse_unknown(phase, OF_PHASE)
        name = phase.text("name", default="")
        if not NAME.fullmatch(name) or name in seen:
            phase.wrong("name", name, "is no name of a phase, or stands there twice", "small letters and _")
        seen.add(name)
        yield WrittenPhase(
            name=name,
            active=phase.text("active", default="") or None,
            work=_word_of(phase, "work", Work, Work.STEP),
            plan=phase.sub("plan").data,
            residents=dict(_read_residents(phase.sub("residents"), roles)),
            logits=_read_logits(phase),
            extras=tuple(_read_extras(phase)),
            joined=phase.text("joined", default="") or None,
        )


def _word_of(fields: Fields, key: str, kind: type[E], usual: E) -> E:
    return kind(fields.text(key, default=usual.value, choices=[each.value for each in kind]))


def _read_residents(fields: Fields, roles: tuple[WrittenRole, ...]) -> Iterator[tuple[str, Residency]]:
    known = {role.name: role for role in roles}
    for name in fields.data:
        how = _word_of(fields, name, Residency, Residency.WHOLE)
        role = known.get(name)
        if role is None:
            fields.wrong(str(name), None, "is no role of the job", f"one of {', '.join(known)}")
        elif how in (OF_TRAINING if role.serves else OF_SERVERS):
            reason = "is of what trains" if role.serves else "is of a server"
            fields.wrong(name, how.value, f"{reason}, and {name} is none")
        yield str(name), how


def _read_range(fields: Fields, key: str, most: int = MOST_BYTES) -> Bytes:
    """Bytes: one number, or the least, the expected and the most."""
    found = fields.data.get(key)
    if isinstance(found, int) and not isinstance(found, bool):
        found = [found] * 3
    sizes = found if isinstance(found, list) else []
    whole = len(sizes) == 3 and all(type(size) is int and 0 <= size <= most for size in sizes)
    if not whole or sorted(sizes) != sizes:
        fields.wrong(key, found, "are no bytes: one number, or [least, expected, most]")
        return Bytes(0, 0, 0)
    return Bytes(*sizes)


def _read_logits(phase: Fields) -> Logits | None:
    if phase.data.get("logits") is None:
        return None
    logits = phase.sub("logits")
    _refuse_unknown(logits, ("tokens", "bytes", "why"))
    return Logits(
        tokens=logits.optional("tokens", low=0),
        per_logit=_read_range(logits, "bytes", 256),
        why=logits.text("why", default="as the document says"),
    )


def _read_extras(phase: Fields) -> Iterator[Extra]:
    found = phase.data.get("items")
    rows = found if isinstance(found, list) and all(isinstance(row, Mapping) for row in found) else []
    if found is not None and (not rows or len(rows) > MOST_EXTRAS):
        phase.wrong("items", None, f"are a list of 1 to {MOST_EXTRAS} objects")
    for number, row in enumerate(rows[:MOST_EXTRAS]):
        one = Fields(row, f"{phase.where}.items[{number}]", phase.problems)
        _refuse_unknown(one, OF_EXTRA)
        yield Extra(
            component=_word_of(one, "component", Component, Component.TEMPORARIES),
            path=one.text("path", default="extra"),
            size=_read_range(one, "bytes"),
            why=one.text("why", default="as the document says"),
            role=one.text("role", default="") or None,
            instants=tuple(_read_instants(one)),
        )


def _read_instants(one: Fields) -> Iterator[Instant]:
    """Instants of a step at which an item is there."""
    known = {each.value: each for each in Instant}
    for name in one.texts("instants"):
        if name not in known:
            one.wrong("instants", name, "is no instant of a step", f"of {', '.join(known)}")
        else:
            yield known[name]


def _phase_problems(roles: tuple[WrittenRole, ...], phases: tuple[WrittenPhase, ...]) -> Iterator[Problem]:
    known = {role.name: role for role in roles}
    for number, phase in enumerate(phases):
        where = f"phases[{number}]"
        role = known.get(phase.active or "")
        if phase.active is not None and role is None:
            hint = f"one of {', '.join(known)}"
            yield Problem(
                field=f"{where}.active", value=phase.active, reason="is no role of the job", hint=hint
            )
        if role and role.serves and phase.work is Work.FORWARD:
            reason = "is a pass of what trains, and the role serves"
            yield Problem(field=f"{where}.work", value=phase.work.value, reason=reason)
        if role and role.serves and phase.logits:
            reason = "are of a pass of what trains, and the role serves"
            yield Problem(field=f"{where}.logits", reason=reason)
        for at, extra in enumerate(phase.extras):
            if extra.role is not None and extra.role not in known:
                hint = f"one of {', '.join(known)}"
                field = f"{where}.items[{at}].role"
                yield Problem(field=field, value=extra.role, reason="is no role of the job", hint=hint)
            yield from _instant_problems(extra, f"{where}.items[{at}].instants", phase, role)
        joined = known.get(phase.joined or "")
        if phase.joined is not None and (joined is None or joined.serves or joined is role or role is None):
            hint = f"one of {', '.join(one.name for one in roles if not one.serves and one is not role)}"
            reason = "is no role that trains beside the active one"
            yield Problem(field=f"{where}.joined", value=phase.joined, reason=reason, hint=hint)
        if role is None and (phase.plan or phase.logits):
            yield Problem(field=f"{where}.plan", reason="is of the active role, and the phase has none")
        away = (Residency.ABSENT, Residency.RESIDUE, *OF_SERVERS)
        if role and phase.residents.get(role.name) in away:
            reason = "is the active role, and cannot be away"
            yield Problem(field=f"{where}.residents.{role.name}", reason=reason)


def _instant_problems(
    extra: Extra, field: str, phase: WrittenPhase, role: WrittenRole | None
) -> Iterator[Problem]:
    """An item is at instants that its phase has: nothing of it would be counted otherwise."""
    had = (Instant.LOAD,)
    if role is not None:
        passes = (Instant.FORWARD, *((Instant.LOSS,) if phase.logits else ()))
        had = SERVING if role.serves else passes if phase.work is Work.FORWARD else TRAINING
    for one in extra.instants:
        if one not in (Instant.LOAD, *had):
            hint = f"of {', '.join(each.value for each in had)}"
            yield Problem(field=field, value=one.value, reason="is no instant of the phase", hint=hint)


def _fraction_problems(roles: tuple[WrittenRole, ...], phases: tuple[WrittenPhase, ...]) -> Iterator[Problem]:
    """Servers that are awake at once on the same cards take no more than all of a card."""
    shares = {role.name: share for role in roles if (share := fraction_of(role)) is not None}
    for number, phase in enumerate(phases):
        awake = [
            role for role in roles
            if role.name in shares and phase.residents.get(role.name, Residency.WHOLE) is Residency.WHOLE
        ]  # fmt: skip
        for at, role in enumerate(awake):
            beside = [role, *(one for one in awake[:at] if _shares_cards(one, role))]
            total = sum(shares[one.name] for one in beside)
            if total > 1 and len(beside) > 1:
                names = " and ".join(one.name for one in beside)
                reason = f"shares of the card of {names} are {total:g} of it together"
                yield Problem(field=f"phases[{number}]", value=phase.name, reason=reason, hint="smaller ones")


def fraction_of(role: WrittenRole) -> float | None:
    """The share of a card that a server is given, where its plan says one."""
    return fraction_of_plan(role.plan)


def fraction_of_plan(plan: Mapping[str, Any]) -> float | None:
    """The same of a plan as it is written."""
    serving = plan.get("serving")
    nested = serving.get("memory_fraction") if isinstance(serving, Mapping) else None
    found = nested if nested is not None else plan.get("serving.memory_fraction")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _shares_cards(one: WrittenRole, other: WrittenRole) -> bool:
    if one.cards is None or other.cards is None:
        return True
    return one.cards[0] < sum(other.cards) and other.cards[0] < sum(one.cards)
