"""The ways through a shell's script: its lists, loops and conditions worked out, one way for each of the
values that its loops go over. Text in, text out: nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod

from memsheet.exchange.shared.shell_calls import (
    GIVEN,
    MOST_CALLS,
    argument_words,
    called_functions,
    takes_arguments,
    with_arguments,
)
from memsheet.exchange.shared.shell_loops import (
    ALONE_NAME,
    ASSIGNED,
    DEEPEST_TEXT,
    RUNS_TEXTS,
    SHELLS,
    adds_to_itself,
    bodies_of,
    goes_through_arguments,
    is_assignment,
    names_given,
    quiet_functions,
    quoted_text,
    reckons_with_itself,
    starts_something,
)
from memsheet.exchange.shared.shell_syntax import (
    Body,
    Branch,
    Chain,
    Choice,
    Group,
    Loop,
    Node,
    Simple,
    parse_shell,
)
from memsheet.exchange.shared.shell_tokens import LIST, WORD, NoShellError, Token
from memsheet.exchange.shared.shell_values import (
    COUNTED,
    MOST_TEXT,
    MOST_VALUES,
    WHOLE_LIST,
    Names,
    arm_of_gpus,
    body_holds,
    chosen_arm,
    list_values,
    node_holds,
    text_with_names,
    word_values,
)
from memsheet.exchange.shared.started_scripts import DEEPEST_CALL
from memsheet.frozen import dataclass, replace
from memsheet.guard.budget import MOST_SCRIPT, Budget, TooMuchError
from memsheet.patterns import late_pattern

MOST_COMBINATIONS, MOST_TOLD, MOST_MADE = 24, 8, MOST_SCRIPT
"""Characters of a script, rounds of its loops that are made, values that are named in words, and characters
of all that is made.
"""
_LEADS = ("export", "declare", "local", "readonly", "typeset")
_PLAIN_VALUE = late_pattern(r"[\w./:=+,@%-]{1,200}")
_LISTED = late_pattern(r"\$\{(\w+)\[(?:[@*]|\d{1,4})\]\}|\$\{#(\w+)\[[@*]\]\}|\$(?:\{(\w+)\}|([A-Za-z_]\w*))")


@dataclass(frozen=True, slots=True)
class LoopSite:
    """A loop that starts something: where it stands, and inside which other."""

    at: int
    name: str
    values: tuple[str, ...]
    outer: tuple[int, ...]


def ways_through(text: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Of each way the values of its loops, its script and what was taken for granted; none where the text is
    no shell's, or asks for more than a launch does.
    """
    try:
        return tuple(_combinations(text, parse_shell(text)))
    except (NoShellError, TooMuchError, RecursionError):
        return ()


def _combinations(text: str, tree: Body) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    first = ScriptWalk(text, {}, ())
    made = first.written(tree)
    outermost = [site for site in first.sites.values() if not site.outer]
    several = [site for site in first.sites.values() if len(site.values) > 1]
    if not several:
        yield "", made, first.loop_remarks()
        return
    rounds = [
        (number, within, pick)
        for number, site in enumerate(outermost[:MOST_COMBINATIONS])
        if (within := [one for one in first.sites.values() if one is site or site.at in one.outer])
        for pick in islice(product(*(range(len(one.values)) for one in within)), MOST_COMBINATIONS)
    ]
    most = max(1, min(MOST_COMBINATIONS, MOST_MADE // max(len(text), len(made), 1)))
    more = (
        sum(
            prod(len(one.values) for one in first.sites.values() if site.at in (one.at, *one.outer))
            for site in outermost
        )
        - most
    )
    told = (f"{more:,} further rounds of the script's loops are not looked at",) if more > 0 else ()
    for number, within, pick in rounds[:most]:
        chosen = {one.at: at for one, at in zip(within, pick, strict=True)}
        walk = ScriptWalk(text, chosen, tuple(one.at for one in outermost[:number]))
        made = walk.written(tree)
        if not walk.skipped:
            own = f" (loop {number + 1})" * bool(number)
            yield _pick_name(within, pick) + own, made, (*walk.loop_remarks(), *told)


def _pick_name(sites: Sequence[LoopSite], pick: Sequence[int]) -> str:
    """The values of loops that go over several."""
    return " ".join(
        f"{site.name}={site.values[at]}" for site, at in zip(sites, pick, strict=True) if len(site.values) > 1
    )


class ScriptWalk:
    """One way through a script. ``chosen``: of loops that start something the value that is read, by their
    places; ``without``: places of loops that are left out.
    """

    __slots__ = (
        "broken", "budget", "calls", "chosen", "defining", "depth", "doubtful", "functions", "given", "held_texts", "made", "names",
        "outer", "quiet", "remarks", "rounds", "script", "sites", "skipped", "text", "used", "without",
    )  # fmt: skip

    def __init__(self, text: str, chosen: Mapping[int, int], without: tuple[int, ...]) -> None:
        self.text, self.chosen, self.without = text, chosen, without
        self.script = text  # whole: ``text`` is a command's own where that is given something
        self.names = Names()
        self.made: list[tuple[str, str]] = []  # pieces, each with the list that it is given to, if any
        self.used: set[str] = set()
        self.sites: dict[int, LoopSite] = {}
        self.outer: tuple[int, ...] = ()
        self.held_texts: dict[str, str] = {}  # names by the text of a command that they are given
        self.rounds: dict[str, str] = {}  # values of the loops around
        self.remarks: dict[str, None] = {}
        self.skipped = False
        self.doubtful = ""  # the condition around that nobody can tell
        self.functions: dict[str, Group] = {}  # those that are called, by name
        self.quiet: frozenset[str] = frozenset()  # those that start nothing
        self.given: list[str] | None = None  # names of what the function around is given
        self.calls, self.depth, self.defining = 0, 0, ""
        self.broken = False  # a loop through arguments that ends
        self.budget = Budget(MOST_SCRIPT * 2, "text of its loops")

    def written(self, tree: Body) -> str:
        self.functions, self.quiet = called_functions(tree), quiet_functions(tree)
        self.body(tree)
        return "".join(piece for piece, of_list in self.made if of_list not in self.used or not of_list)

    def loop_remarks(self) -> tuple[str, ...]:
        loops = dict.fromkeys(
            f"{site.name} = {site.values[self.chosen.get(site.at, 0)]}: one of "
            f"{', '.join(site.values[:MOST_TOLD])}{', …' if len(site.values) > MOST_TOLD else ''} of a loop"
            for site in self.sites.values()
            if len(site.values) > 1 and (site.at in self.chosen or not self.chosen)
        )
        return (*loops, *self.remarks)

    def keep(self, piece: str, of_list: str = "") -> None:
        self.budget.spend(len(piece))
        self.made.append((piece, of_list or self.defining))

    def body(self, held: Body) -> None:
        at = held.at
        for node in held.nodes:
            self.keep(self.text[at : node.at])
            self.node(node)
            at = node.end
            if self.broken:
                return
        self.keep(self.text[at : held.end])

    def node(self, node: Node) -> None:
        match node:
            case Simple():
                self.command(node)
            case Chain():
                self.chain(node)
            case Branch():
                self.branch(node)
            case Loop():
                self.loop(node)
            case Choice():
                self.choice(node)
            case Group() if node.name in self.functions:
                self.definition(node)
            case Group():
                self.parts(node, [node.body])

    # ---- functions ----

    def definition(self, node: Group) -> None:
        """A function as it stands, which is left out where its calls stand for it; its names are a call's."""
        before, texts, lists = self.defining, dict(self.names.texts), dict(self.names.lists)
        self.defining = before or f"{node.name}()"
        self.parts(node, [node.body])
        self.defining = before
        self.names = replace(self.names, texts=texts, lists=lists)

    def call(self, function: Group, words: Sequence[Token]) -> None:
        """What a function does with what it is given."""
        self.calls, self.depth = self.calls + 1, self.depth + 1
        before, self.given = self.given, self.given_names(argument_words(words, self.names))
        self.used.add(f"{function.name}()")
        self.body(function.body)
        self.keep("\n")
        self.given, self.depth = before, self.depth - 1

    def given_names(self, words: Sequence[str]) -> list[str]:
        """Names for the words of a call, each given its own."""
        self.keep("\n")
        found = [f"{GIVEN}{self.calls}_{at}" for at in range(1, len(words) + 1)]
        for name, word in zip(found, words, strict=True):
            held = word_values(word, self.names)
            self.names.texts[name] = " ".join(held) if held is not None else None
            self.keep(f"{name}={word}\n")
        return found

    def as_given(self, node: Simple) -> Simple | None:
        """A command of a function with what that is given in its places; None of one that takes nothing."""
        source = self.text[node.at : node.end]
        if self.given is None or not takes_arguments(source):
            return None
        found = parse_shell(with_arguments(source, self.given)).nodes
        return found[0] if len(found) == 1 and isinstance(found[0], Simple) else None

    def condition_holds(self, held: Body) -> bool | None:
        """Whether a condition holds, with what a function is given in its places."""
        source = self.text[held.at : held.end]
        if self.given is None or not takes_arguments(source):
            return body_holds(held, self.names)
        return body_holds(parse_shell(with_arguments(source, self.given)), self.names)

    def through_arguments(self, node: Loop) -> None:
        """The rounds of a loop that goes through what a function is given."""
        for _ in range(MOST_VALUES):
            if node.condition is None or not self.given or self.condition_holds(node.condition) is not True:
                break
            before = self.given
            self.body(node.body)
            if self.broken or self.given == before:
                break
        self.broken = False

    def parts(self, node: Node, bodies: Sequence[Body]) -> None:
        """A node as it stands, with what is inside it worked out."""
        at = node.at
        for held in bodies:
            self.keep(self.text[at : held.at])
            self.body(held)
            at = held.end
        self.keep(self.text[at : node.end])

    # ---- conditions ----

    def chain(self, node: Chain) -> None:
        """What follows a test is left out where that does not hold (``[ … ] && a``)."""
        first = self.as_given(node.parts[0]) if isinstance(node.parts[0], Simple) else None
        told = node_holds(first or node.parts[0], self.names) if set(node.joins) <= {"&&", "||"} else None
        tests = isinstance(node.parts[0], Simple) and node.parts[0].words[0].text in ("[", "[[", "test", "((")
        if told is not None and len(node.parts) == 2:
            if told is (node.joins[0] == "&&"):
                self.node(node.parts[1])
            return
        before = self.doubtful
        at = node.at
        for number, part in enumerate(node.parts):
            self.keep(self.text[at : part.at])
            self.doubtful = before or (self.source(node.parts[0]) if number and tests else "")
            self.node(part)
            at = part.end
        self.doubtful = before

    def branch(self, node: Branch) -> None:
        open_arms: list[tuple[Body, Body]] = []
        for condition, held in node.arms:
            told = self.condition_holds(condition)
            if told and not open_arms:
                self.body(held)
                return
            if told is not False:
                open_arms.append((condition, held))
            if told:
                break
        if not open_arms:
            if node.other is not None:
                self.body(node.other)
            return
        self.open_branch(node)

    def open_branch(self, node: Branch) -> None:
        """Conditions that nobody can tell: as they stand, but for what is added under them."""
        before = self.doubtful
        self.doubtful = before or self.source(node.arms[0][0])
        self.parts(node, bodies_of(node))
        self.doubtful = before
        for name in names_given(node):
            self.names.texts[name] = None

    def source(self, held: Body | Node) -> str:
        return " ".join(self.text[held.at : held.end].strip("; \n").split())[:100]

    def choice(self, node: Choice) -> None:
        word = node.word if self.given is None else with_arguments(node.word, self.given)
        taken = chosen_arm(word, node.arms, self.names)
        if taken is None and (taken := arm_of_gpus(node.arms)) is not None:
            self.remarks[f"case {node.word} = {node.arms[taken][0][0]}: the question is of GPUs"] = None
        if taken is None:
            before = self.doubtful
            self.doubtful = before or f"case {node.word}"
            self.parts(node, bodies_of(node))
            self.doubtful = before
            for name in names_given(node):
                self.names.texts[name] = None
        elif taken >= 0:
            self.body(node.arms[taken][1])

    # ---- loops ----

    def loop(self, node: Loop) -> None:
        if node.at in self.without:
            return
        if goes_through_arguments(node, self.text, self.quiet):
            if self.given is not None:
                self.through_arguments(node)
                return
            self.remarks["what the script itself is given = nothing: its own defaults"] = None
            return
        values = list_values(node.words, self.names) if node.words is not None else None
        if values is None:
            self.parts(node, [*([node.condition] if node.condition else []), node.body])
            for name in names_given(node):
                self.names.texts[name] = None
        elif starts_something(node.body):
            self.one_round(node, values)
        else:
            for value in values:
                self.round(node, value)

    def one_round(self, node: Loop, values: list[str]) -> None:
        """The round of one value, of a loop that starts something in each."""
        self.sites.setdefault(node.at, LoopSite(node.at, node.name, tuple(values), self.outer))
        before, self.outer = self.outer, (*self.outer, node.at)
        self.round(node, values[min(self.chosen.get(node.at, 0), len(values) - 1)])
        self.outer = before

    def round(self, node: Loop, value: str) -> None:
        self.names.texts[node.name] = value
        self.names.lists.pop(node.name, None)
        self.keep(f"{node.name}={shlex.quote(value)}\n")
        if _PLAIN_VALUE.fullmatch(value):
            self.rounds[node.name] = value
        self.body(node.body)
        self.rounds.pop(node.name, None)
        self.keep("\n")

    # ---- commands ----

    def command(self, node: Simple) -> None:
        if (own := self.as_given(node)) is not None:
            before, self.text = self.text, with_arguments(self.text[node.at : node.end], self.given or ())
            self.command_of(own)
            self.text = before
        else:
            self.command_of(node)

    def command_of(self, node: Simple) -> None:
        first = node.words[0]
        if self.given is not None and first.text in ("shift", "break"):
            count = node.words[1].text if len(node.words) > 1 else "1"
            self.broken = first.text == "break" and not self.outer
            self.given = self.given[int(count) if count.isdecimal() and first.text == "shift" else 0 :]
            return
        if first.text == "set" and len(node.words) > 1 and node.words[1].text == "--":
            self.calls += 1
            self.given = self.given_names(argument_words(node.words[2:], self.names))
            return
        function = self.functions.get(first.text) if not self.defining else None
        if function is not None and self.calls < MOST_CALLS and self.depth < DEEPEST_CALL:
            whole, self.text = self.text, self.script
            self.call(function, node.words[1:])
            self.text = whole
            return
        if first.text in ("continue", "break") and self.outer and not self.doubtful:
            self.skipped = True
        leads = 1 if first.text in _LEADS else 0
        rest = [token for token in node.words[leads:] if not (leads and token.text.startswith("-"))]
        given = next((at for at, token in enumerate(rest) if not is_assignment(token)), len(rest))
        if given < len(rest) or not rest:
            self.keep(self.with_lists(node))
            for text in self.texts_run(rest[given:]):
                self.keep(f"\n{text}\n")
            return
        began = len(self.made)
        lead = "export " if first.text == "export" else ""  # of what started programs have, too
        for token in rest:
            self.assign(token, lead)
        if len(rest) == 1 and rest[0].kind == WORD and self.made[began:] == [(f"{lead}{rest[0].text}\n", "")]:
            self.made[began:] = [(self.text[node.at : node.end], "")]

    def assign(self, token: Token, lead: str = "") -> None:
        """One name's value, as the readers of commands know it. ``lead``: the word that hands it on."""
        if token.kind == LIST:
            self.assign_list(token)
            return
        found = ASSIGNED.fullmatch(token.text)
        if found is None:
            return
        name, more, value = found[1], found[2], self.inlined(found[3])
        if self.doubtful and (more or adds_to_itself(name, value) or reckons_with_itself(name, value)):
            self.left_out(name)
            return
        held = word_values(value, self.names) if value else [""]
        self.rounds.pop(name, None)
        inner = quoted_text(value)
        self.held_texts.pop(name, None)
        if (
            inner
            and len(inner) <= MOST_TEXT
            and " " in inner.strip()
            and not more
            and not _names_itself(name, inner)
        ):
            self.held_texts[name] = inner
        text = " ".join(held) if held is not None else None
        if more:
            before = self.names.texts.get(name, "")
            value = f'"${{{name}:-}}"{value}' if name in self.names.texts else value
            self.names.texts[name] = None if before is None or text is None else before + text
        else:
            self.names.texts[name] = text
            self.names.lists.pop(name, None)
            value = shlex.quote(text) if text is not None and "$((" in value and ":-" not in value else value
        self.keep(f"{lead}{name}={value}\n")

    def assign_list(self, token: Token) -> None:
        name, more = token.text.removesuffix("+"), token.text.endswith("+")
        if self.doubtful and more:
            self.left_out(name)
            return
        words = [one for word in token.held for one in self.list_words(word)]
        before = self.names.lists.get(name) if more else None
        if more and before is None and self.names.texts.get(name):
            before = [str(self.names.texts[name])]
        self.names.lists[name] = [*(before or ()), *words]
        self.names.texts.pop(name, None)
        self.names.budget.spend(len(self.names.lists[name]))
        self.keep(self.text[token.at : token.end] + "\n", of_list=name)

    def left_out(self, name: str) -> None:
        self.remarks[f"what is added to {name} if {self.doubtful} = left out: the file does not tell"] = None

    def list_words(self, word: str) -> list[str]:
        whole = WHOLE_LIST.fullmatch(word)
        if whole and whole[1] in self.names.lists:
            self.used.add(whole[1])
            return self.names.lists[whole[1]]
        return [self.inlined(word)]

    def with_lists(self, node: Simple) -> str:
        """A command with the words of lists in their places."""
        pieces, at = list[str](), node.at
        for token in node.words:
            pieces.append(self.text[at : token.at])
            pieces.append(self.filled_token(token))
            at = token.end
        return "".join(pieces)

    def filled_token(self, token: Token) -> str:
        if token.kind != WORD or "$" not in token.text:
            return self.text[token.at : token.end]
        held = self.command_text(token.text)
        return " ".join(self.list_words(token.text)) if held is None else held

    def command_text(self, word: str, depth: int = 0) -> str | None:
        """What a name stands for that is a word of its own and is given the text of a command."""
        named = ALONE_NAME.fullmatch(word)
        text = self.held_texts.get(named[1]) if named else None
        plain = (text or "").replace("\\\n", " ").replace("\n", " ")
        if depth > DEEPEST_TEXT or plain.lstrip()[:1] in ("", "-"):  # flags, which every reader fills in
            return None
        self.budget.spend(len(plain))
        parts = plain.split(" ")
        return " ".join(self.command_text(part, depth + 1) or part for part in parts)

    def texts_run(self, words: Sequence[Token]) -> Iterator[str]:
        """Commands that stand as a text in what another shell, host or scheduler is given."""
        programs = [token.text.rpartition("/")[2] for token in words]
        if programs[:1] == [] or programs[0] not in RUNS_TEXTS or not SHELLS.isdisjoint(programs):
            return
        for token in words[1:]:
            inner = quoted_text(token.text.removeprefix("--wrap=")) if token.kind == WORD else None
            held = self.command_text(inner or "")
            if inner and (held or " " in inner.strip()):
                yield held or inner

    def inlined(self, word: str) -> str:
        """A word with the lists inside it in their places."""

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2] or found[3] or found[4]
            if name not in self.names.lists:
                return self.rounds.get(name) or found[0]
            self.used.add(name)
            if found[1] and ("@" in found[0] or "*" in found[0]):
                return " ".join(self.names.lists[name])
            told = text_with_names(found[0], self.names)
            return found[0] if told is None else told

        return (
            _LISTED.sub(value, word)
            if "$" in word and (self.names.lists or self.rounds or COUNTED.search(word))
            else word
        )


def _names_itself(name: str, text: str) -> bool:
    return re.search(rf"\$(?:\{{{name}\b|{name}\b)", text) is not None
