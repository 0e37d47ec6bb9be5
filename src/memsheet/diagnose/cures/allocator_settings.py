"""Settings of PyTorch's allocator, and whether they would have served a request."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.diagnose.causes.shortages import is_warm_up
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.interval import NOTHING, at_least, size_words
from memsheet.diagnose.message import MAYBE, NO, Cure
from memsheet.diagnose.named_cards import beyond_card
from memsheet.diagnose.signs import Signs

ALLOC_CONF = {
    "CUDA": "PYTORCH_CUDA_ALLOC_CONF", "HIP": "PYTORCH_HIP_ALLOC_CONF", "XPU": "PYTORCH_ALLOC_CONF", "NPU": "PYTORCH_NPU_ALLOC_CONF",
    "MLU": "PYTORCH_MLU_ALLOC_CONF", "MUSA": "PYTORCH_MUSA_ALLOC_CONF",
}  # fmt: skip


def alloc_conf(who: str) -> str:
    """The variable that the allocator reads; the new name does not turn this on in every release (2.9.1), the
    old one does.
    """
    return f"{ALLOC_CONF.get(who, ALLOC_CONF['CUDA'])}=expandable_segments:True"


def expandable_cure(figures: Figures, signs: Signs, who: str, *, covered: bool | None, why: str) -> Cure:
    """From v2.1.0 on: c10/cuda/CUDACachingAllocator.h:126 and 146 there (is_expandable, SEGMENT_MAP), of
    which v2.0.1's header has nothing.
    """
    kept = figures.unallocated or NOTHING
    if who.startswith("MPS"):
        return Cure(change="expandable segments", helps=NO, why="this allocator has no such setting")
    helps = NO if covered is False or signs.expandable or signs.windows else MAYBE
    said = (
        "it is on already" if signs.expandable and covered is not False
        else "not to be had on Windows" if signs.windows and covered is not False
        else why
    )  # fmt: skip
    if signs.release and helps == MAYBE:
        said = f"{said}; from PyTorch 2.1 on, and this message is of {signs.release} or before"
    if who == "XPU" and helps == MAYBE:
        said = f"{said}; where this release's allocator for XPU has them"
    return Cure(
        change="expandable segments",
        helps=helps,
        saves_bytes=None if helps == NO else kept.high,
        where=f"torch>=2.1, then {alloc_conf(who)}" if signs.release and helps == MAYBE else alloc_conf(who),
        why=said,
    )


def expandable_by_sum(figures: Figures, signs: Signs, who: str) -> Cure:
    """What merging all that is kept would come to."""
    kept, free = figures.unallocated, figures.free
    if free is None and (over := beyond_card(figures.asked, signs.card)):
        return expandable_cure(figures, signs, who, covered=False, why=over)
    if kept is None or free is None:
        return expandable_cure(
            figures, signs, who, covered=None, why="what is kept without tensors is not said"
        )
    covered = at_least(free + kept, figures.asked)
    sums = f"{size_words(free)} free + {size_words(kept)} kept"
    why = f"{sums} {'<' if covered is False else 'against'} {size_words(figures.asked)} asked for"
    return expandable_cure(figures, signs, who, covered=covered, why=why)


def no_cache_clearing(who: str) -> Cure:
    return Cure(
        change=f"torch.{'cuda' if who == 'HIP' else who.removesuffix('backend').lower()}.empty_cache()",
        helps=NO,
        why="the allocator gave back every whole segment before it failed",
    )


def against_pieces(figures: Figures, signs: Signs, who: str) -> Iterator[Cure]:
    yield expandable_cure(
        figures,
        signs,
        who,
        covered=True,
        why="merges what lies in pieces, without cost; a page that holds one small tensor stays",
    )
    if is_warm_up(figures):
        yield Cure(
            change="no warm-up of the allocator while weights are loaded",
            helps=MAYBE,
            why="it reserves one block that small tensors then split",
        )
    if figures.private_pools is not None:
        yield Cure(
            change="fewer CUDA graphs",
            helps=MAYBE,
            saves_bytes=figures.private_pools.high,
            why="their pools lend nothing to others",
        )
    if signs.release != "1.3" and who not in ("XPU", "MPSbackend"):  # which have no such setting
        yield Cure(
            change="split no block above a size",
            helps=MAYBE,
            where=alloc_conf(who).replace("expandable_segments:True", "max_split_size_mb:512"),
            why="where this release has it: its message names it then"
            if signs.release and "max_split_size_mb" not in signs.text
            else "",
        )
    yield no_cache_clearing(who)
