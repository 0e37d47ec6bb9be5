"""What stands around a server's command in a script: variables, further commands, the engine's version. Read
as text, never run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import dropwhile

from memsheet.exchange.shared.python_switches import last_switch_index
from memsheet.exchange.shared.shell_text import (
    NAMED_SUM,
    OF_EMPTY,
    QUIET,
    squeeze_sums,
    sums_summed_up,
    with_numbers_named,
)
from memsheet.guard.budget import Budget, TooMuchError
from memsheet.patterns import late_pattern

ENDS = ("&&", "||", "|", "&", ";", ">", ">>", "2>&1")
BETWEEN = ENDS[:5]
MOST_LINES = 64
"""Lines that one quoted value may go over."""
MOST_VALUE, MOST_EXPANDED = 2**14, 2**20
"""Characters of a value with its variables in place, and of all values that one script makes: a launch is a
few hundred.
"""
VERSION, OTHERS, OPEN = "version", "commands", "variables"
"""Places of a command's values that are no flags: the engine's version, how many commands were read,
variables.
"""
OFFLINE_MODULE = "vllm.entrypoints.llm"
"""Where vLLM's class ``LLM`` is: stands for a script that makes one."""
ENGINE_MODULE = "vllm.v1.engine.async_llm"
"""Where its asynchronous engine is: stands for a script that makes one of arguments."""
DEMO_MODULE = "vllm.entrypoints.api_server"
"""Its server for demonstrations, around the asynchronous engine (vllm-project/vllm v0.11.0
entrypoints/api_server.py)."""
LAUNCHES = (
    ("vllm", "serve"), ("python", "-m", OFFLINE_MODULE), ("python", "-m", ENGINE_MODULE), ("python", "-m", DEMO_MODULE), ("python", "-m", "vllm.entrypoints.openai.api_server"), ("python", "-m", "vllm.entrypoints.cli.main", "serve"),
    ("python", "-m", "sglang.launch_server"), ("sglang", "serve"),
    ("llama-server",), ("llama-cli",), ("trtllm-serve", "serve"), ("trtllm-serve",), ("text-generation-launcher",), ("python", "-m", "dynamo.vllm"),
    ("python", "-m", "dynamo.sglang"), ("python", "-m", "dynamo.trtllm"),
    ("text-embeddings-router",), ("lmdeploy", "serve", "api_server"), ("lmdeploy", "chat"), ("ollama", "serve"),
)  # fmt: skip
"""Every server's that is looked for, so that one beside the one that is read is seen."""
_BUILD = late_pattern(r"(?:-[0-9a-z]+)?(?:\.exe)?")
MOST_ARGUMENTS = 256
MOST_SHOWN = 4
"""Servers that are not read and are named."""
OLDER_NAMES = {"server": "llama-server", "main": "llama-cli"}
"""Names of programs before ggml-org/llama.cpp 1c641e6a, which gave all of them a prefix."""
SHELLS = ("bash", "sh")
ITSELF = frozenset({"trtllm-serve", "text-generation-launcher", "text-embeddings-router"})
"""Programs of one word that are nothing but servers, whatever they are given."""
NAMES_A_MODEL = frozenset({"-m", "--model", "-hf", "-hfr", "--hf-repo", "-mu", "--model-url"})
"""Flags by which a program of one word is told its model."""
IMAGES = {
    "vllm": "vllm/vllm-openai", "sglang": "lmsysorg/sglang", "llama.cpp": "ghcr.io/ggml-org/llama.cpp", "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release",
    "tgi": "ghcr.io/huggingface/text-generation-inference", "lmdeploy": "openmmlab/lmdeploy", "tei": "ghcr.io/huggingface/text-embeddings-inference", "ollama": "ollama/ollama",
}  # fmt: skip
ALONE = (IMAGES["vllm"], IMAGES["llama.cpp"], IMAGES["tgi"], IMAGES["tei"], IMAGES["ollama"])
"""Images that take the flags alone."""
COPIED = late_pattern(r"^[\w.:/-]+/huggingface-text-generation-inference-cu\d[\w.:-]*$")
"""Copies of images that clouds keep under names of their own."""
MIRRORED = late_pattern(r"(?:[\w.-]+(?::\d+)?/)+vllm-openai(?=[:@]|$)")
"""vLLM's own image in a registry of somebody's own, by the end of its name."""
_NUMBER = r"v?(\d{1,4}\.\d{1,6}[\w.]{0,24})"
_VARIABLE = late_pattern(
    r"\$(?:\{(\w+)(?:(:?[-=?])([^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+))?\}|(\w+))", holds=("$",)
)
_ASSIGNED = late_pattern(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ADDED = late_pattern(r"\$(?:\{(\w+)(?::-)?\}|(\w+))", holds=("$",))
_OF_MAKE = late_pattern(r"\$\(([A-Z][A-Z0-9_]*)\)", holds=("$(",))
"""A variable of make, by how such are written: no program's name is all in capitals."""
UNTOLD = "open"
"""The variable that stands for a value which the text of a script in another language does not tell."""
PRINTED = "printed"
"""The variable that stands for what a command would print."""
_COMMAND = late_pattern(r"\$\([^()]*\)|`[^`]*`", holds=("$(", "`"))
_LISTED = late_pattern(
    r"\$\(\s*ls\s+(?:-\w++\s+)*+\"?(?P<path>[^\s|;&<>()`'\"]++)\"?(?P<end>/?[^\s|;&<>()`'\"]*+)"
    r"\s*(?:2>\s*/dev/null\s*)?(?:\|\s*(?:sort|head|tail)\b[^|()`]*+)*+\)"
)
"""A folder among those of a pattern, which lists them: the pattern stands for whichever it is."""
_SPECIAL = late_pattern(r"['\"\\#]")
_UNPLAIN = late_pattern(r"['\"\\#]|[^\S \t\r\n]")
"""What a shell's own splitting heeds, and blanks that split nothing there."""
_SHIELDS = {"$": "\ue000", "`": "\ue001", "#": "\ue002"}
_BARE = {ord(shield): letter for letter, shield in _SHIELDS.items()}
_LEADS = ("export", "readonly", "declare", "local", "-x", "-r", "then", "do", "else", "env", "exec", "nohup")


@lru_cache(maxsize=2)
def script_lines(text: str) -> tuple[tuple[str, ...], ...]:
    """The lines of a script as words, a quoted value over several lines in one; what is no shell is passed
    over. What a command would print is a variable that nobody set.
    """
    return tuple(_split_script_lines(text))


def _split_script_lines(text: str) -> Iterator[tuple[str, ...]]:
    held: list[str] = []
    quote = ""
    for line in squeeze_sums(text.replace("\\\n", " ")).splitlines():
        shown, quote = _shield_literal_text(line, quote)
        held.append(shown)
        if quote and len(held) < MOST_LINES:
            continue
        whole, held, quote = "\n".join(held), [], ""
        with suppress(ValueError):
            yield tuple(_words_of_line(_COMMAND.sub(_printed_text, _OF_MAKE.sub(r"${\1}", whole))))


def _words_of_line(line: str) -> list[str]:
    """A line as a shell splits it; at once where nothing in it is quoted, escaped or a comment."""
    return shlex.split(line, comments=True) if _UNPLAIN.search(line) else line.split()


def _printed_text(found: re.Match[str]) -> str:
    """What stands for what a command prints: the pattern of those that it lists, else a variable."""
    listed = _LISTED.fullmatch(found[0])
    path = listed["path"] + listed["end"] if listed else ""
    return path if "*" in path else f"${{{PRINTED}}}"


def _shield_literal_text(line: str, quote: str) -> tuple[str, str]:
    """A line in which what a shell takes as it stands, in single quotes or after a backslash, looks like no
    variable or command; and the quote that is open after it. ``quote``: the one that was open before it.
    """
    if not quote and not _SPECIAL.search(line):
        return line, ""
    found, last = list[str](), ""
    for at, letter in enumerate(line):
        inside = letter == "#" and at > 0 and line[at - 1] not in " \t;|&("  # a word, which ends no command
        if letter == "#" and not quote and last != "\\" and not inside:
            return "".join(found) + line[at:], ""
        literal = quote == "'" or last == "\\" or inside
        if letter in "'\"" and (last != "\\" or quote == "'"):
            quote = "" if quote == letter else quote or letter
        found.append(_SHIELDS.get(letter, letter) if literal else letter)
        last = "" if (last == "\\" and quote != "'") or quote == "'" else letter
    return "".join(found), quote


def _unshield_word(word: str) -> str:
    return word.translate(_BARE)


def split_line_commands(words: Sequence[str]) -> Iterator[list[str]]:
    """Commands of one line, and those of the text that a shell is given in it."""
    for text in _shell_texts(words):
        for line in _split_script_lines(text):
            yield from split_line_commands(line)
    found: list[str] = []
    for word in words:
        ends = word in BETWEEN
        if not ends and word.rstrip(";"):
            found.append(word.rstrip(";"))
        if ends or word.endswith(";"):
            yield found
            found = []
    yield found


def _shell_texts(words: Sequence[str]) -> Iterator[str]:
    """What a shell is started with as its script (``bash -c "…"``)."""
    for at in range(len(words) - 2):
        program, how = words[at].rpartition("/")[2], words[at + 1]
        if program in SHELLS and re.fullmatch(r"-[a-z]{0,3}c", how):
            yield _unshield_word(words[at + 2])


class Variables:
    """What a script gives its variables: ``sure`` where it says it, ``all`` with defaults for those that
    whoever runs it may set.
    """

    __slots__ = ("all", "budget", "sure")

    def __init__(self) -> None:
        self.budget = Budget(MOST_EXPANDED, "text of variables")
        self.sure: dict[str, str] = {}
        self.all: dict[str, str] = {}

    def learn(self, words: Iterable[str]) -> None:
        """Assignments in front of a command, or alone. One that is given twice may be either."""
        for word in words:
            told = _ASSIGNED.fullmatch(word)
            if told is None:
                if word in _LEADS:
                    continue
                return
            sure = expand_variables(told[2], self.sure, self.budget, defaults=False)
            added = _ADDED.match(told[2])
            itself = added is not None and told[1] in (added[1], added[2])
            again = not itself and self.sure.get(told[1], sure) != sure
            self.sure[told[1]] = f"${{{told[1]}}}" if again else sure
            self.all[told[1]] = expand_variables(told[2], self.all, self.budget, defaults=True)

    def filled(self, words: Iterable[str], *, defaults: bool) -> list[str]:
        """Words with the variables' values, split again where one is several words."""
        known, found = self.all if defaults else self.sure, list[str]()
        for word in words:
            value = expand_variables(word, known, self.budget, defaults=defaults)
            if not value and _VARIABLE.fullmatch(word):
                continue  # a shell makes no word of nothing
            several = value != word and _VARIABLE.fullmatch(word) and value.lstrip().startswith("-")
            found += _split_shell_words(value) if several else [value]
        return [_unshield_word(word) for word in found]


def _split_shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def expand_variables(text: str, known: Mapping[str, str], budget: Budget, *, defaults: bool) -> str:
    """A text with the variables that are known, and the defaults that it says itself. Raises TooMuchError
    where that grows too long.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[4]
        usual = defaults and (found[2] or "")[-1:] in ("-", "=")  # "?" stops with words where nobody set it
        default = found[3] if "$" not in (found[3] or "") else _VARIABLE.sub(value, found[3])
        given = name in known and not (usual and found[2] in OF_EMPTY and not known[name])
        held = known[name] if given else default if usual else found[0]
        budget.spend(len(held))
        return held

    made = _VARIABLE.sub(value, text) if "$" in text else text
    made = NAMED_SUM.sub(lambda found: with_numbers_named(found, known), made) if "$((" in made else made
    if len(made) > MOST_VALUE and made != text:
        raise TooMuchError(f"makes a value of more than {MOST_VALUE} characters")
    return sums_summed_up(made)


ARGUMENTS = ("$@", "$*", "${@}", "${*}", "${@:1}", "${@:2}")
"""What a script itself is given: nothing, as it stands."""
OPEN_WORD = late_pattern(r"\$(?:\w+|\{\w+(?:\[[@*]\]|:?\+.*)?\}|\(.*\))|`.*`")
"""A word that is one variable, or what a command prints, for which any number of arguments may stand."""
GIVES_WORDS = late_pattern(r"\$\{\w+:?\+[^\s{}]+\s")
"""One that gives an option with its value where a variable is set."""
_OPENED = late_pattern(r"\$\{[^{}]*+$|\$\([^()]*+$|`[^`]*+$")
_CLOSED_BY = {"${": "}", "$(": ")"}


def joined_parts(words: Iterable[str]) -> Iterator[str]:
    """Words with each part that a shell fills (``${A:+--b $A}``, ``$(cat f)``) as one."""
    held: list[str] = []
    for word in words:
        if held:
            held.append(word)
            if word.endswith(_CLOSED_BY.get(held[0][:2], "`")):
                yield " ".join(held)
                held = []
        elif _OPENED.match(word):
            held.append(word)
        else:
            yield word
    yield from held


_PLACE = late_pattern(r"[\w:.=-]*+(?:<[^<>]++>|\{\{[^{}]++\}\})[\w:.-]*+")


def unset_variables(text: str) -> list[tuple[str, str]]:
    """Variables of a text that nobody set, with their defaults."""
    return [
        (found[1] or found[4], (found[3] or "") if not (found[2] or "").endswith("?") else "")
        for found in _VARIABLE.finditer(text)
    ]


def unread_servers(others: Sequence[str]) -> str:
    """How many of a file's servers are read, which is the first, and the others by what starts them."""
    shown = ", ".join(dict.fromkeys(others[:MOST_SHOWN]))
    return f"1 of {len(others) + 1} read; not read: {shown}{' …' if len(others) > MOST_SHOWN else ''}"


def has_unset_placeholder(text: object) -> bool:
    """Whether what the engine gets is not in the text: a variable is left, or a place that somebody is to
    fill in (``<N>``, ``{{ nodes }}``).
    """
    return isinstance(text, str) and ("$" in text or _PLACE.fullmatch(text) is not None)


def server_flags_index(
    words: Sequence[str], launches: Iterable[tuple[str, ...]], images: Iterable[str]
) -> int | None:
    """Where a command's flags begin: after a launch, or after the container's image where that starts the
    server itself.
    """
    launches = tuple(launches)
    heads = _program_heads(launches)
    for place, word in enumerate(words):
        own = word.rpartition("/")[2].partition("@")[0]
        if not own.startswith(heads):
            continue
        at = last_switch_index(words, place)
        for launch in launches:
            started = (
                own == launch[0]
                or (launch[0] == "python" and own.startswith("python"))
                or _is_build_of(own, launch, words, place)
            )
            sure = started and (len(launch) > 1 or _is_program_started(words, place))
            if sure and tuple(words[at + 1 : at + len(launch)]) == launch[1:]:
                return at + len(launch)
    if (entered := _entered_flags_index(words, launches)) is not None:
        return entered
    wanted = frozenset(filter(None, images))  # each with its owner's name before a slash
    named = (at + 1 for at, word in enumerate(words) if "/" in word and named_image(word) in wanted)
    return next((start for start in named if not _is_shell(words[start : start + 1])), None)


ENTRYPOINT = "--entrypoint"
"""Of a container's start: the program that is run in the place of the image's own (docker-run(1))."""


def _entered_flags_index(words: Sequence[str], launches: Iterable[tuple[str, ...]]) -> int | None:
    """Where the flags begin of a server that a container is entered by, with the rest of its launch behind
    the image (``docker run --entrypoint vllm IMAGE serve MODEL``).
    """
    at, entry = next(
        (
            (at, word.partition("=")[2] or "".join(words[at + 1 : at + 2]))
            for at, word in enumerate(words)
            if word.partition("=")[0] == ENTRYPOINT
        ),
        (0, ""),
    )
    own = entry.rpartition("/")[2]
    for launch in launches if own else ():
        rest = launch[1:]
        if not rest or not (own == launch[0] or (launch[0] == "python" and own.startswith("python"))):
            continue
        starts = (
            place for place in range(at + 1, len(words)) if tuple(words[place : place + len(rest)]) == rest
        )
        if (start := next(starts, None)) is not None:
            return start + len(rest)
    return None


@lru_cache(maxsize=16)
def _program_heads(launches: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """What the programs of some launches begin with, those by their older names among them."""
    return tuple(dict.fromkeys([*(launch[0] for launch in launches), *OLDER_NAMES]))


def starts_servers_alone(text: str) -> bool:
    """Whether all that a shell's script starts are servers; what it sets and prints starts nothing, and of
    what asks Slurm for cards nothing is said.
    """
    if "#SBATCH" in text:
        return False
    found = False
    for words in (part for line in script_lines(text) for part in split_line_commands(line)):
        rest = list(dropwhile(lambda word: word in _LEADS or _ASSIGNED.fullmatch(word), words))
        serves = server_flags_index(rest, LAUNCHES, ALONE) is not None
        if rest and not serves and rest[0] not in QUIET:
            return False
        found = found or serves
    return found


def _is_shell(words: Sequence[str]) -> bool:
    """Whether a container is told to run a shell in the server's place."""
    return bool(words) and words[0].rpartition("/")[2] in SHELLS


def _is_program_started(words: Sequence[str], at: int) -> bool:
    """Whether a name of one word is run there, and no option's value, a variable's or another program's."""
    is_value = _ASSIGNED.fullmatch(words[at]) or (at > 0 and words[at - 1].startswith("-"))
    if words[at].rpartition("/")[2] in ITSELF:
        return not is_value and at + 1 < len(words)
    return not is_value and not NAMES_A_MODEL.isdisjoint(
        word.partition("=")[0] for word in words[at : at + MOST_ARGUMENTS]
    )


def _is_build_of(own: str, launch: tuple[str, ...], words: Sequence[str], at: int) -> bool:
    """Whether a program is one of llama.cpp's by another name: with a build behind it, as Windows calls it,
    or as it was called before its programs had a common prefix, where it is given a GGUF file.
    """
    if len(launch) > 1:
        return False
    if own.startswith(launch[0]):
        return _BUILD.fullmatch(own, len(launch[0])) is not None
    older = OLDER_NAMES.get(own.removesuffix(".exe"))
    return older == launch[0] and any(word.endswith(".gguf") for word in words[at : at + MOST_ARGUMENTS])


def named_image(word: str) -> str:
    """An image's name without its tag and the hub's own name; of a cloud's copy, whose it is."""
    if COPIED.search(word):
        return IMAGES["tgi"]
    if found := MIRRORED.match(word):
        return IMAGES["vllm"] if found[0].count("/") else word
    return word.partition("@")[0].partition(":")[0].removeprefix("docker.io/")


_BEFORE_RELEASE = (":", "==", "@")


def pinned_release(package: str, words: Iterable[str]) -> str | None:
    """The version that an image's tag or a requirement says (``vllm/vllm-openai:v0.10.2``, ``vllm==0.10.2``,
    ``vllm@0.10.2``); the last.
    """
    image, found = IMAGES[package], None
    for word in words:
        if not any(sign in word for sign in _BEFORE_RELEASE):
            continue
        told = re.fullmatch(rf"(?:[\w.:-]+/)*{re.escape(image)}:{_NUMBER}(?:[-@].*)?", word)
        told = told or (
            re.fullmatch(rf"{MIRRORED.pattern}:{_NUMBER}(?:[-@].*)?", word) if package == "vllm" else None
        )
        told = told or re.fullmatch(
            rf"(?:[\w./-]+=)?{package}(?:\[[\w,-]*\])?(?:==|@){_NUMBER}(?:\+.*)?", word
        )
        found = told[1] if told else found
    return found
