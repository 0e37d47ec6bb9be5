"""Types that several of the JSON Schemas share: a plan, a fix, bytes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from memsheet.plan.check import RULES, Rule

Bytes = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """No key besides those listed, and no value that only looks like its type."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _plan_type(rule: Rule) -> Any:
    """The JSON type of one key of a plan. Every key may be null: that leaves it to its default."""
    match rule.kind:
        case "count":
            return Annotated[int, Field(ge=rule.low, le=rule.high)]
        case "counts":
            return list[Annotated[int, Field(ge=0)]]
        case "flag":
            return bool | list[str] if rule.choices else bool
        case "number":
            return Annotated[float, Field(gt=rule.low, le=rule.high)]
        case "share":
            return Annotated[float, Field(ge=0, le=1)]
        case "text" | "dtype":
            return str
        case "texts":
            return list[str]
        case "choice":
            return Literal[rule.choices]
        case _:
            return Any


def _plan_model() -> type[BaseModel]:
    """The vocabulary of plans (``plan.check.RULES``) as a model: dotted keys become objects."""
    groups: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for key, rule in RULES.items():
        group, _, inner = key.rpartition(".")
        if key == "precision.name":
            continue  # written as the value of "precision" itself
        (groups.setdefault(group, {}) if group else top)[inner] = (_plan_type(rule) | None, None)
    for group, members in groups.items():
        made = create_model(group.capitalize(), __base__=Strict, **members)
        named = _plan_type(RULES["precision.name"]) if group == "precision" else None
        top[group] = (made | named | None, None)
    top["schema"] = (Literal["memsheet/plan/1"] | None, None)
    fields: dict[str, Any] = {
        "schema_" if key == "schema" else key: (kind, Field(default, alias=key))
        for key, (kind, default) in top.items()
    }
    return create_model("Plan", __base__=Strict, **fields)


Plan: Any = _plan_model()


class Change(Strict):
    key: str
    from_: Any = Field(alias="from")
    to: Any
    saves_bytes: int
    words: str
    needs: str


class Fix(Strict):
    changes: list[Change]
    device_bytes: Bytes
    device_low_bytes: Bytes
    device_high_bytes: Bytes
    host_bytes: Bytes


class WayToFit(Strict):
    """Something else that was accounted and fits, where no change on the same cards does."""

    words: str
    changes: dict[str, Any]
    device_bytes: Bytes
    device_low_bytes: Bytes
    device_high_bytes: Bytes
    host_bytes: Bytes
