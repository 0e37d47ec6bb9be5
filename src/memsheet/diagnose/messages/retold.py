"""The figures of PyTorch's message where its words are others: translated, read from a picture with slips, or
cut in front.

Its sentences keep their order and one figure each (messages/torch_allocator.py): what was asked for, what
the card has, what of it is free, what this process and others hold, what is allocated, what is kept beyond.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, more_than, printed_bytes
from memsheet.diagnose.message import Message
from memsheet.diagnose.messages import torch_allocator
from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

_FIGURE = late_pattern(
    r"(?<![\w.,])(?P<number>[\dOoIl|]{1,6}(?:[.,][\dOoIl|]{1,3})?)\s?(?:(?P<unit>[GgMmKk][iI1l|]?[Bb8]|[GMK]i?o|[ГМК]и?[Бб])(?![A-Za-zА-я0-9_/])|(?<=[.,]\d)(?=\s)|(?<=[.,]\d\d)(?=\s))"
)  # fmt: skip
"""A figure as any tongue writes it, its digits as a picture's reader may take them; one with a point may have
the unit of the one before it.
"""
_DIGITS = str.maketrans("OoIl|,", "00111.")
_SLIPS = str.maketrans("10|iöüäéèêíóçãõ", "lolloua" + "eeeiocao")
"""Letters that readers of pictures take for one another, or without their marks, as one."""
ASKED, CAPACITY, FREE, OWN, KEPT, ALLOCATED = (
    "asked", "capacity", "free", "process", "unallocated", "allocated",
)  # fmt: skip
_ROLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (ASKED, ("tried", "attempt", "versuch", "tentativ", "tentato", "essay", "intent", "tentou", "попыт", "пытал", "尝试", "試", "嘗試", "试图", "しようと", "시도", "cố gắng", "thử", "denendi", "çalış", "próbow")),
    (CAPACITY, ("capacity", "capacty", "kapazit", "capacit", "capacidad", "capacidade", "容量", "总共", "總共", "용량", "ёмкост", "емкост", "объем", "объём", "dung lượng", "kapasite", "pojemno", "insgesamt verfügbar")),
    (FREE, ("free", "frei", "libre", "liber", "livre", "可用", "空闲", "空閒", "剩余", "剩餘", "空き", "여유", "사용 가능", "свобод", "trống", "còn", "boş", "woln", "dispon", "verfügbar")),
    (KEPT, ("reserv", "réserv", "保留", "预留", "預留", "予約", "확보", "예약", "зарезерв", "резерв", "dành riêng", "dự trữ", "ayrıl", "rezerw", "riservat")),
    (OWN, ("process", "prozess", "proces", "进程", "進程", "行程", "プロセス", "프로세스", "процесс", "tiến trình", "işlem", "süreç")),
    (ALLOCATED, ("alloc", "alloué", "zugewies", "zugeteilt", "belegt", "asign", "assegn", "分配", "割り当て", "할당", "выделен", "phân bổ", "cấp phát", "tahsis", "przydziel", "alokow")),
    (CAPACITY, ("total", "gesamt", "insgesamt", "总", "總", "合計", "전체", "всего", "tổng", "toplam", "łącznie")),
)  # fmt: skip
"""How the sentences' words begin, by tongue; of two in one part the first here says what the figure is."""
_NOT = ("not ", "nicht", "non ", "no ", "pas ", "não", "nao", "не ", "未", "没有", "沒有", "いない", "ない", "않", "chưa", "değil", "nie ", "but un")  # fmt: skip
_NUMBER_OF_PROCESS = late_pattern(r"(?:\bpid|roces\w{0,3}|roze(?:ss|ß)\w{0,2}|进程|進程|行程|プロセス|프로세스|роцесс\w{0,3}|tiến trình|[iİ]şlem|süreç)\W{0,3}(\d{2,10})(?!\d)", re.IGNORECASE)  # fmt: skip
_PARTS = late_pattern(
    r"[.!?;:](?=\s|$)|[。；：，、()（）\[\]\n]|,(?!\d)|(?<=\d),(?=\s)"
    r"|\bof(?= ?\d)|\b(?:of which|dont|davon|wovon|de los cuales|de las cuales|dos quais|das quais|di cui|из которых|из них|z czego|trong đó|bunun|and|und|et|y|e|и|và|ve|oraz|i)\b|其中|그중|중 |のうち|和(?= ?\d)"
)  # fmt: skip
"""What stands between two figures' words."""
_CARD = late_pattern(r"\b(?:GPU|CPU|NPU|XPU)\s?(\d{1,3})\b")
MOST_FIGURES, LONGEST, FEWEST = 12, 1_600, 4
"""Figures of one message, its letters, and the different ones that make it one."""


class _Said(NamedTuple):
    """A figure, where it stands, and what its words say that it is: nothing where they do not."""

    place: int
    role: str
    size: Interval
    pid: int | None


def _plain(words: str) -> str:
    """Words without what a picture's reader may have changed."""
    return words.lower().replace("rn", "m").translate(_SLIPS)


def _role_of(words: str) -> str:
    plain = _plain(words)
    return next((role for role, stems in _ROLES if any(_plain(stem) in plain for stem in stems)), "")


def _figures_of(text: str) -> Iterator[_Said]:
    """Every figure that stands alone in a part of a sentence, with what the part says that it is."""
    unit = ""
    for found in _FIGURE.finditer(text):
        unit = _plain(found["unit"])[0].translate(_CYRILLIC) if found["unit"] else unit
        if not unit:
            continue
        before = [each.end() for each in _PARTS.finditer(text, max(0, found.start() - 160), found.start())]
        behind = _PARTS.search(text, found.end(), found.end() + 120)
        begun = max((each for each in before), default=max(0, found.start() - 160))
        part = text[begun : behind.start() if behind else found.end() + 120]
        number = found["number"].translate(_DIGITS)
        size = printed_bytes(number, f"{unit}iB")
        if size is None:
            continue
        if len(_FIGURE.findall(part)) > 1:  # what one of several in a part is stands behind it
            part = _FIGURE.split(text[found.end() : begun + len(part)], maxsplit=1)[0]
        named = _NUMBER_OF_PROCESS.search(part)
        yield _Said(found.start(), _role_of(part), size, int(named[1]) if named else None)


_CYRILLIC = str.maketrans("гмк", "gmk")


def _message_in(said: list[_Said], text: str) -> Message | None:
    """One message's figures as it; None where what was asked for, free or allocated is not among them."""
    facts: dict[str, Interval] = {}
    processes = []
    for place, each in enumerate(said):
        role = each.role
        follows = said[place + 1].role if place + 1 < len(said) else ""
        if not facts and follows == CAPACITY:
            role = ASKED
        if not role and place and said[place - 1].role == FREE:  # "1.9 free of 79.1"
            role = CAPACITY
        if role == OWN and each.pid is not None:
            processes.append((each.pid, each.size))
        elif role and role not in facts:
            facts[role] = each.size
    if not {ASKED, FREE, ALLOCATED} <= facts.keys() or len(facts) < FEWEST:
        return None
    kept, allocated = facts.get(KEPT), facts[ALLOCATED]
    if kept is not None and more_than(kept, allocated) and not _says_not(text[said[0].place :]):
        facts["reserved"] = facts.pop(KEPT)
    device = _CARD.search(text, max(0, said[0].place - 80))
    return Message(
        kind=torch_allocator.KIND, line=text.count("\n", 0, said[0].place), facts=facts, processes=tuple(processes),
        words={"who": "CUDA", **({"device": device[1]} if device else {})},
    )  # fmt: skip


def _says_not(words: str) -> bool:
    """Whether what is kept is said to be kept without tensors, and not in all."""
    return any(_plain(each) in _plain(words) for each in _NOT)


def retold_messages(log: Log) -> Iterator[Message]:
    """The first message whose figures stand in a text in other words than PyTorch's."""
    text = "\n".join(log.lines)
    if len(text) > MOST_OF_TEXT:
        return
    said = list(_figures_of(text))
    for place, first in enumerate(said):
        near = [each for each in said[place : place + MOST_FIGURES] if each.place - first.place < LONGEST]
        asked_again = (at for at, each in enumerate(near) if at and each.role == ASKED)
        if found := _message_in(near[: next(asked_again, None)], text):
            yield found
            return


MOST_OF_TEXT = 64 * 2**10
"""A longer text is a log, and its messages PyTorch's own."""
