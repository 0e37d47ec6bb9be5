"""What gives back what others hold of a card, the host, or this process outside its allocator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from memsheet.diagnose.causes.neighbours import are_siblings, gap_of_card
from memsheet.diagnose.cures.tables import FEWER_GRAPHS, OF_LIBRARIES, SERVER_GRAPHS
from memsheet.diagnose.denials import said_of
from memsheet.diagnose.figures import OUTSIDE_MOST, Figures, aligned_bytes
from memsheet.diagnose.frames import LOADING
from memsheet.diagnose.interval import NOTHING, at_least, at_most_words, size_words
from memsheet.diagnose.message import MAYBE, YES, Cure
from memsheet.diagnose.messages.colocated import cures_of_colocated, shares_a_card
from memsheet.diagnose.messages.stated import only_share, share_called
from memsheet.diagnose.signs import Signs
from memsheet.frozen import replace


def against_outside(figures: Figures, signs: Signs) -> Iterator[Cure]:
    """By what of this process a text names that holds memory outside the allocator."""
    if shares_a_card(signs.text):
        yield from cures_of_colocated(signs.text, signs.sleep_freed)
    named = [cure for sign, cure in OF_LIBRARIES if sign.search(signs.text)]
    saves = None if shares_a_card(signs.text) else max(0, (figures.outside or NOTHING).high - OUTSIDE_MOST)
    yield from (replace(cure, saves_bytes=saves if len(named) == 1 else None) for cure in named[:2])
    if not named:
        yield replace(FEWER_GRAPHS, saves_bytes=saves)
        yield Cure(change="fewer communicators and other libraries in this process", helps=MAYBE)


_STAYS = re.compile(
    r"\b(?:has|have|needs?|ought|is|are) to (?:stay|remain|keep (?:running|up))\b|\b(?:must|should|will) (?:both )?(?:stay|remain|keep running)\b"
    r"|\b(?:can ?not|can't|must not|mustn't|may not|not allowed to|don't want to|do not want to) (?:be )?(?:stop|kill|end|move|shut|touch)\w{0,6}\b"
    r"|\bboth (?:belong|need|have to|must|should|are needed|of them (?:belong|need|have to|must|should))\b|\bkeep (?:it|both|them|that one) (?:running|up|there|alive)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that what else is on the card belongs there."""


def _smaller_share(figures: Figures, signs: Signs) -> Iterator[Cure]:
    """Of a server beside others its own share, smaller by what is short; of one that captures graphs none."""
    name = share_called(signs.text)
    before_cache = signs.task == LOADING or signs.phase in ("load", "profile")
    if not name or before_cache or shares_a_card(signs.text) or not (figures.free and figures.capacity):
        return
    lacking = aligned_bytes(figures.asked) - figures.free
    hundredths = -(-lacking.positive.high * 100 // max(1, figures.capacity.low))
    stated, option = only_share(signs.text, name), f"--{name.replace('_', '-')}"
    lower = stated - Decimal(hundredths) / 100 if stated is not None else Decimal(0)
    if hundredths >= 100 or (stated is not None and lower <= 0):
        return
    yield Cure(
        change=f"a share of the card that is smaller by 0.{hundredths:02d} or more", helps=MAYBE, saves_bytes=lacking.positive.high,
        where=f"{option} {lower}" if stated is not None else option,
        why=f"{at_most_words(lacking.positive)} are short, and what else is on the card stays" + (f"; it is {stated} now" if stated is not None else ""),
    )  # fmt: skip
    if signs.phase == "graphs":
        yield Cure(
            change="fewer CUDA graphs, or none", helps=MAYBE, where=SERVER_GRAPHS.get(signs.program, "")
        )


def without_others(figures: Figures, signs: Signs) -> Iterator[Cure]:
    if are_siblings(figures, signs.text):
        yield Cure(
            change="let every rank choose its own card first", helps=MAYBE, saves_bytes=figures.others_total.high,
            where="torch.cuda.set_device(local_rank)", why="a rank that does not makes its context on the first card",
        )  # fmt: skip
        if "torch.load(" in signs.text:
            yield Cure(
                change="checkpoints read to the host", helps=MAYBE, where='torch.load(…, map_location="cpu")', why="tensors that were saved on the first card are read to it by every rank",
            )  # fmt: skip
        return
    beside = tuple(_smaller_share(figures, signs))
    yield from beside
    if beside and said_of(_STAYS, signs.text):
        yield Cure(change="another card", helps=MAYBE, where="CUDA_VISIBLE_DEVICES=N")
        return
    held = figures.others_total if figures.others else figures.unseen or gap_of_card(figures) or NOTHING
    served = figures.free is not None and at_least(figures.free + held, aligned_bytes(figures.asked)) is True
    named = ", ".join(
        figures.process_words(pid)
        for pid, _ in sorted(figures.others, key=lambda other: -other[1].middle)[:3]
    )
    yield Cure(
        change=f"end or move the other {'processes' if len(figures.others) > 1 else 'process'} {named}".rstrip() if named else "find who else is on the card",
        helps=YES if served and named else MAYBE, saves_bytes=held.high, where="nvidia-smi" if named else "nvidia-smi (on the host)",
        why=f"{size_words(figures.free or NOTHING)} free + {size_words(held)} of theirs cover the request",
    )  # fmt: skip
    yield Cure(change="another card", helps=MAYBE, where="CUDA_VISIBLE_DEVICES=N")


def without_host(figures: Figures) -> Iterator[Cure]:
    yield Cure(
        change="the host's programs ended, and the files that it keeps in memory let go", helps=MAYBE,
        saves_bytes=(figures.unseen or NOTHING).high, where="sync; echo 3 > /proc/sys/vm/drop_caches",
        why="the device's memory is the host's",
    )  # fmt: skip
