"""Releases of a job's servers, and of the libraries that its files are of, told beside that of what trains
(``verl==0.8.0,vllm==0.11.0``; ``trl==0.19.1`` of a job that DeepSpeed divides).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from memsheet.errors import input_error
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.words import engine_of_program, named_release

VERSION = "engine_version"
NO_SERVERS: Mapping[str, str] = {}


def without_other_releases(
    words: Mapping[str, Any], trains: object, formats: Collection[str]
) -> tuple[dict[str, Any], Mapping[str, str], Mapping[str, str]]:
    """``words`` with no more than the release of what ``trains``; by their engines those of servers, and by
    their ``formats`` those of libraries whose files another engine runs.
    """
    said = words.get(VERSION)
    if not isinstance(said, str) or not isinstance(trains, str):
        return dict(words), NO_SERVERS, NO_SERVERS
    servers, libraries, rest = dict[str, str](), dict[str, str](), list[str]()
    for one in (part.strip() for part in said.split(",")):
        program, release = named_release(one)
        engine = find_engine(program)
        if program in formats and engine_of_program(program) != trains:
            libraries[program] = release
        elif engine is not None and "train" not in engine.tasks and program != trains:
            servers[program] = release
        else:
            rest.append(one)
    return {**words, VERSION: ",".join(rest) or None}, servers, libraries


def refuse_server_releases(servers: Mapping[str, str], engine: object) -> None:
    """Raise InputError where releases of servers are told of what starts none beside its ``engine``."""
    for program, release in servers.items():
        why = f"is a release of {program}, and the engine is {engine}"
        raise input_error(
            VERSION, f"{program}=={release}", why, "the release of that engine, or leave it out"
        )


def with_server_releases(document: dict[str, Any], servers: Mapping[str, str]) -> dict[str, Any]:
    """The job with its servers in the releases that are told. Raises InputError for a server that it has
    not.
    """
    plans = [role["plan"] for role in document["roles"].values() if role["plan"].get("task") == "infer"]
    for program, release in servers.items():
        own = [plan for plan in plans if plan.get("engine") == program]
        if not own:
            held = ", ".join(dict.fromkeys(str(plan.get("engine")) for plan in plans)) or "none"
            why = f"is a release of {program}, and the job's servers are: {held}"
            raise input_error(VERSION, f"{program}=={release}", why, "the release of one of them")
    roles = {
        name: {**role, "plan": {**role["plan"], VERSION: servers[role["plan"]["engine"]]}}
        for name, role in document["roles"].items()
        if role["plan"].get("task") == "infer" and role["plan"].get("engine") in servers
    }
    return {**document, "roles": {**document["roles"], **roles}}
