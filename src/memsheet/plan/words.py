"""A question in the words of any tool → one in memsheet's own: keys of a plan, what was taken for granted,
and every problem at once.

in_our_words       names and values as people give them, a command line's texts among them, → Asked
accumulated_batch  what was said in numbers of micro-batches and of replicas, once the GPUs are known
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem, nearest_words, raise_if_problems
from memsheet.frozen import NamedTuple
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan import aliases
from memsheet.plan.accumulated_batch import ACCUMULATION, REPLICAS
from memsheet.plan.aliases import ALIASES, FIRST_LAYERS, INFER, LIBRARIES, PARTITIONED, VALUES, Meaning, Word
from memsheet.plan.check import RULES
from memsheet.plan.contradictions import SEQUENCES
from memsheet.plan.engine_registry import KNOWN_NAMES, find_engine
from memsheet.plan.names import OFFLOADABLE, SHORT, parse_offload
from memsheet.plan.packages import JOB_PROGRAMS
from memsheet.plan.values import number_in_thousands, value_of

with late_functions(__name__):
    from memsheet.plan.library_defaults import lora_rank_of


ON = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
DTYPE, OPTIM = "@dtype", "@optim"
_COUNTS = (ACCUMULATION, REPLICAS)


class ReadOptions(NamedTuple):
    """A question in memsheet's words."""

    request: dict[str, Any]
    assumed: tuple[str, ...]
    library: str | None
    settled: frozenset[str] = frozenset()
    """Every key that a given option speaks of, with a value in ``request`` or without one ("no adapter")."""
    options: tuple[tuple[str, Any, Mapping[str, Any]], ...] = ()
    """Every option as it was given, with the keys and values that it comes to."""


class _ReadOption(NamedTuple):
    """One option as it was given, and what it comes to ("?" before a key: unless that is said)."""

    name: str
    value: Any
    keys: Mapping[str, Any]


_NAMED_RELEASE = late_pattern(
    r"(?:(?P<program>[A-Za-z][\w.-]*)(?:[ ]*(?:==|=|@)[ ]*v?|[ ]+v?(?=\d+\.))|v)(?P<release>\d[\w.+-]*)"
)
"""A release behind its program's name, as package managers write it (``trl==1.10``)."""


def in_our_words(
    options: Mapping[str, Any], task: str, planned: Mapping[str, Any] | None = None
) -> ReadOptions:
    """``options`` by short names or by others' words (Nones left out), over a plan that says the rest.

    Raises InputError with every name that nobody knows, every word that this engine does not have, and all
    that contradicts itself.
    """
    given = {name.replace("-", "_"): value for name, value in options.items() if value is not None}
    problems = list[Problem]()
    library, engine, assumed = _named_engine(given, planned or {}, task, problems)
    said = [
        one
        for name, value in given.items()
        if (one := _option_keys(name, value, task, engine, library, problems))
    ]
    request = _merge_option_keys(said, problems)
    raise_if_problems(problems)
    if library is not None:
        named, why, more = LIBRARIES[library]
        assumed = (f"engine = {named} ({library} {why})", *assumed)
        request |= {
            key.removeprefix("?"): value
            for key, value in more.items()
            if key.removeprefix("?") not in request
        }
    if request.pop(PARTITIONED, None) and request.get("zero", (planned or {}).get("zero")) == 3:
        request.setdefault("offload.parameters", 1)
    if request.pop(FIRST_LAYERS, None) and "recompute.every" in request:
        request["recompute.layers"] = request.pop("recompute.every")
    assumed += tuple(
        f"{one.name} = {value} ({one.value})"
        for one in said
        for key, value in one.keys.items()
        if number_in_thousands(key, one.value)
    )
    release = str(request.get("engine_version", ""))
    if release and (version := _NAMED_RELEASE.fullmatch(release)):
        request["engine_version"] = version["release"]
        assumed += (f"engine_version = {version['release']} ({version[0]})",)
    settled = frozenset(key for name in given for key in _keys_of_option(name))
    told: dict[str, Any] = {} if options.get("engine") else {"engine": engine}
    every = tuple(
        (
            one.name,
            options["engine"] if one.name == "engine" and options.get("engine") else one.value,
            {**one.keys, **(told if _engines_of(one.name, task) else {})},
        )
        for one in said
    )
    return ReadOptions(request, (*assumed, *_weak_key_notes(said, request)), library, settled, every)


def _keys_of_option(name: str) -> Iterator[str]:
    """Keys that an option may say, whatever its value."""
    if name == "offload":
        yield from (f"offload.{part}" for part in OFFLOADABLE)
    elif name in SHORT:
        yield SHORT[name]
    for meaning in word.meanings if (word := _alias_word(name)) else ():
        yield from (key.removeprefix("?") for keys in (meaning.comes_to or {}).values() for key in keys)
        yield from {DTYPE: ("precision.parameters",), OPTIM: ("optimizer.name",)}.get(
            meaning.key, (meaning.key,)
        )


def of_serving(name: str) -> bool:
    """Whether an option is a word of those that serve, and means nothing in training."""
    word = _alias_word(name)
    return word is not None and all(meaning.task == INFER for meaning in word.meanings)


def means_the_same(name: str, value: Any, keys: Mapping[str, Any], task: str, engine: str) -> bool:
    """Whether an option that comes to some keys comes to them with another engine, too."""
    found = _option_keys(name, value, task, engine, None, problems := list[Problem]())
    return (
        found is not None
        and not problems
        and dict(found.keys) == {key: keys[key] for key in keys if key != "engine"}
    )


def sequences_at_once(asked: ReadOptions) -> int | None:
    """How many sequences are asked for at once; None where nobody asks. An engine's own word
    (``max-num-seqs``) is the most that it starts, and so is a plan's: no room for all of them is asked for.
    """
    said = (
        keys[key]
        for name, _, keys in asked.options
        if not _engines_of(name, INFER)
        for key in SEQUENCES
        if keys.get(key)
    )
    return next(said, None)


def request_from(options: Mapping[str, Any], task: str = aliases.TRAIN) -> dict[str, Any]:
    """``options`` as a request. Raises InputError as ``in_our_words`` does."""
    return in_our_words(options, task).request


# ---- the engine --------------------------------------------------------------------------------------------


def _named_engine(
    given: dict[str, Any], planned: Mapping[str, Any], task: str, problems: list[Problem]
) -> tuple[str | None, str | None, tuple[str, ...]]:
    """The library that is named, the engine, and how that is known where a word of its alone says it."""
    program = _program_of_version(given)
    told = given.get("engine") or planned.get("engine")
    named = given.get("engine") or (None if told else program)
    library = aliases.library_named(named) if isinstance(named, str) else None
    if library is not None:
        given["engine"] = LIBRARIES[library][0]
    elif named is not None:
        given["engine"] = named
    engine = given.get("engine") or planned.get("engine")
    if program is not None and engine != engine_of_program(program):
        problems.append(
            Problem(
                field="engine_version", value=given["engine_version"], reason=f"is a release of {program}, and the engine is {named or engine}",
                hint="the release of that engine, or leave it out",
            )
        )  # fmt: skip
    said = str(given.get("engine_version", ""))
    pinned = _NAMED_RELEASE.fullmatch(said) if program is None and "==" in said else None
    if pinned is not None and pinned["program"].lower() not in JOB_PROGRAMS:
        problems.append(
            Problem(
                field="engine_version", value=said, reason=f"is a release of {pinned['program']}, which is no engine or library that is known",
                hint="the release alone: 4.51.3, or 4.51.3 (torch 2.6.0)",
            )
        )  # fmt: skip
    if told is None and program is not None and library is None:
        return None, program, (f"engine = {program} (--engine-version names it)",)
    if engine is not None:
        return library, str(engine), ()
    own = {name: engines for name in given if (engines := _engines_of(name, task))}
    left = set.intersection(*(set(engines) for engines in own.values())) if own else set[str]()
    if own and not left:
        whose = "; ".join(f"{_flag_name(name)} is {' and '.join(engines)}'s" for name, engines in own.items())
        problems.append(
            Problem(
                field="engine",
                reason=f"is named by words of several: {whose}",
                hint="name one: --engine NAME",
            )
        )
    if len(left) != 1:
        return None, None, ()
    engine = given["engine"] = left.pop()
    return (
        None,
        engine,
        (
            (
                f"engine = {engine} ({', '.join(map(_flag_name, own))}: "
                f"{'its words' if len(own) > 1 else 'its word'})"
            ),
        ),
    )


def named_release(text: str) -> tuple[str, str]:
    """The program and the release of a text as package managers write them; empty where it is none."""
    found = _NAMED_RELEASE.fullmatch(text) if text else None
    return (found["program"].lower(), found["release"]) if found and found["program"] else ("", "")


def _program_of_version(given: Mapping[str, Any]) -> str | None:
    """The engine or library whose release ``engine_version`` is, by its own word; None where it names none
    that is known.
    """
    name = named_release(str(given.get("engine_version", "")))[0]
    return name if name in KNOWN_NAMES or aliases.library_named(name) else None


def engine_of_program(program: str) -> str:
    """The engine of a library's name, an engine's own name as it is."""
    library = aliases.library_named(program)
    return LIBRARIES[library][0] if library else program


def _engines_of(name: str, task: str) -> tuple[str, ...]:
    """Whose word it is, where it is of some engines and of no other."""
    word = _alias_word(name)
    meanings = (
        [meaning for meaning in word.meanings if meaning.task in ("", task) and not meaning.refused]
        if word
        else []
    )
    return (
        tuple(dict.fromkeys(engine for meaning in meanings for engine in meaning.engines))
        if all(m.engines for m in meanings)
        else ()
    )


# ---- one option --------------------------------------------------------------------------------------------


def _option_keys(
    name: str, value: Any, task: str, engine: str | None, library: str | None, problems: list[Problem]
) -> _ReadOption | None:
    """What one option comes to; its problems are kept."""
    found: Mapping[str, Any] | Problem
    if name == "offload":
        found = parse_offload(value)
    elif name in SHORT:
        found = _of_key(SHORT[name], name, value, task, engine)
    elif (word := _alias_word(name)) is not None:
        found = _of_word(word, name, value, task, engine, library)
    else:
        near = nearest_words(name, [*SHORT, "offload", *(alias.replace("-", "_") for alias in ALIASES)], n=1)
        found = Problem(
            field=name,
            value=value,
            reason="is not a plan option",
            hint=f"did you mean {near[0]}?" if near else "",
        )
    if isinstance(found, Problem):
        problems.append(found)
        return None
    return _ReadOption(name, value, found)


def _alias_word(name: str) -> Word | None:
    return ALIASES.get(name.replace("_", "-")) if name not in SHORT else None


def _of_key(key: str, name: str, value: Any, task: str, engine: str | None) -> Mapping[str, Any] | Problem:
    """The value of a key of a plan, by others' names for it, or as it is."""
    text = value.strip().lower() if isinstance(value, str) else None
    if text is None:
        return {key: list(value) if isinstance(value, tuple) else value}
    known: Any = VALUES.get(key, {}).get(text)
    if key == "precision.name" and task == INFER:
        known = aliases.SERVED_PRECISIONS.get(text, known)
    known_engine = find_engine(engine or "")
    stores_gguf = known_engine is not None and known_engine.stores_gguf
    if key == "quantization.weights" and stores_gguf and text in aliases.NO_GGUF_TYPES:
        return Problem(
            field=name,
            value=value,
            reason=f"is no type that {engine} stores weights in",
            hint=f"{_flag_name('quantize')} gguf:Q4_K_M",
        )
    if isinstance(known, Meaning):
        return Problem(field=name, value=value, reason=known.refused, hint=known.hint)
    if known is not None:
        return known if isinstance(known, Mapping) else {key: known}
    if key == "quantization.weights" and (quant := GGUF_TYPE.fullmatch(text)):
        return {key: f"gguf:{quant[1].upper()}"}
    if RULES.get(key) is not None and RULES[key].kind == "flag" and text in ON:
        return {key: ON[text]}
    return {key: value_of(key, value)}


GGUF_TYPE = late_pattern(r"(?:gguf:)?(i?q[1-8]_[a-z0-9_]{1,8})")
"""A type of GGUF files, or a mix of them, as people write it: Q4_K_M, q4_k_m, gguf:Q4_K_M."""


def _of_word(
    word: Word, name: str, value: Any, task: str, engine: str | None, library: str | None
) -> Mapping[str, Any] | Problem:
    """What a word of others comes to in this command and engine."""
    meaning = _word_meaning(word, name, value, task, engine)
    if isinstance(meaning, Problem):
        return meaning
    if meaning.comes_to is None:
        return _of_named_key(meaning.key, name, value, task, engine)
    text = str(value).strip().lower()
    text = {True: "true", False: "false"}[ON[text]] if word.switch and text in ON else text
    if text not in meaning.comes_to:
        known = meaning.hint or f"one of {', '.join(meaning.comes_to)}"
        return Problem(
            field=_flag_name(name), value=value, reason="is no value of it that is known here", hint=known
        )
    return dict(_of_library(meaning.comes_to[text], library))


def _of_library(keys: Mapping[str, Any], library: str | None) -> Iterator[tuple[str, Any]]:
    """Keys and values with those of a library in them: its rank of adapters, and whether it quantizes scales
    again.
    """
    for key, value in keys.items():
        if value == "lora":
            yield key, (lora_rank_of(library) if library else None) or aliases.LORA_RANK
        elif key == "quantization.double_quant":
            yield key, value or library in aliases.DOUBLE_QUANT
        else:
            yield key, value


def _of_named_key(
    key: str, name: str, value: Any, task: str, engine: str | None
) -> Mapping[str, Any] | Problem:
    if key == DTYPE:
        return _load_dtype_keys(name, value, task)
    if key == OPTIM:
        return aliases.OPTIM.get(str(value).strip().lower()) or _of_key(
            "optimizer.name", name, value, task, engine
        )
    if key in _COUNTS:
        number = value_of("microbatch", value)
        whole = isinstance(number, int) and not isinstance(number, bool) and number >= 1
        return (
            {key: number}
            if whole
            else Problem(field=_flag_name(name), value=value, reason="is not a positive whole number")
        )
    return _of_key(key, name, value, task, engine)


def _load_dtype_keys(name: str, value: Any, task: str) -> Mapping[str, Any] | Problem:
    """The dtype that weights are loaded in: of a job without autocast also that of gradients and moments."""
    dtype = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}.get(
        text := str(value).strip().lower().removeprefix("torch."), text
    )
    if dtype == "auto":
        return {}
    if dtype not in ("bf16", "fp16", "fp32"):
        return Problem(
            field=_flag_name(name),
            value=value,
            reason="is no dtype that weights are loaded in",
            hint="bfloat16, float16, float32 or auto",
        )
    if task == INFER:
        return {"precision.parameters": dtype, "precision.compute": dtype}
    return {
        **{f"precision.{part}": dtype for part in ("parameters", "gradients", "moments")},
        "?precision.compute": dtype,
        "?precision.reduce": dtype,
    }


BATCHES = {"train": ("microbatch", "global-batch"), "infer": ("sequences", "max-batched-tokens")}


def _word_of_task(name: str, value: Any, task: str) -> str:
    """What says a batch in this command, where a word of the other one's batch is given."""
    if "batch" not in name or task not in BATCHES:
        return ""
    of_rank, of_all = BATCHES[task]
    return f"--{of_rank} {value} a GPU, or --{of_all} {value} of all"


def _word_meaning(word: Word, name: str, value: Any, task: str, engine: str | None) -> Meaning | Problem:
    """The meaning in this command, of this engine before everybody's."""
    here = [meaning for meaning in word.meanings if meaning.task in ("", task)]
    if not here:
        other = "infer" if task == "train" else "train"
        return Problem(
            field=_flag_name(name),
            value=value,
            reason=f"has no meaning in {task}",
            hint=_word_of_task(name, value, task) or f"leave it out; it is of {other}",
        )
    own = [meaning for meaning in here if engine in meaning.engines]
    chosen = own or [meaning for meaning in here if not meaning.engines]
    if not chosen and engine is None and len({(m.key, str(m.comes_to)) for m in here}) > 1:
        meant = " or ".join(f"{' and '.join(m.engines)}'s {_flag_of(m.key)}" for m in here)
        return Problem(
            field=_flag_name(name), value=value, reason=f"is {meant}", hint="name the engine: --engine NAME"
        )
    if not chosen and engine is not None:
        owners, says = (
            " and ".join(dict.fromkeys(e for m in here for e in m.engines)),
            [_flag_of(m.key) for m in here if m.key],
        )
        hint = f"{says[0]} says it here" if says else "leave it out"
        return Problem(
            field=_flag_name(name),
            value=value,
            reason=f"is a word of {owners}, and the engine is {engine}",
            hint=hint,
        )
    meaning = (chosen or here)[0]
    return (
        Problem(field=_flag_name(name), value=value, reason=meaning.refused, hint=meaning.hint)
        if meaning.refused
        else meaning
    )


# ---- all of them together ----------------------------------------------------------------------------------


def _merge_option_keys(said: list[_ReadOption], problems: list[Problem]) -> dict[str, Any]:
    """All keys; one that two options say differently is a problem, and a weak one gives way."""
    request, by = dict[str, Any](), dict[str, _ReadOption]()
    for one in said:
        for key, value in one.keys.items():
            if key.startswith("?"):
                continue
            if key in request and request[key] != value:
                first = by[key]
                both = (
                    f"is said twice: {_flag_name(first.name)} {_option_value_text(first.value)} and "
                    f"{_flag_name(one.name)} {_option_value_text(one.value)}"
                )
                problems.append(Problem(field=key, reason=both, hint="once is enough"))
            request[key], by[key] = value, one
    for one in said:
        for key, value in one.keys.items():
            if key.startswith("?"):
                request.setdefault(key[1:], value)
    return request


def _weak_key_notes(said: list[_ReadOption], request: Mapping[str, Any]) -> Iterator[str]:
    """What a word brought with it that nobody said: a rank of adapters, say."""
    strong = {key for one in said for key in one.keys}
    for one in said:
        for key in one.keys:
            if key.startswith("?adapter.") and key[1:] not in strong:
                shown = request[key[1:]]
                yield (
                    f"{key[1:]} = {','.join(shown) if isinstance(shown, list) else shown} "
                    f"({_flag_name(one.name)})"
                )


def _flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_FLAGS = {key: _flag_name(short) for short, key in SHORT.items()}


def _flag_of(key: str) -> str:
    return _FLAGS.get(key, key)


def _option_value_text(value: Any) -> str:
    return "" if value is True else str(value)
