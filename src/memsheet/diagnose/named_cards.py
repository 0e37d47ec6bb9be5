"""The card that a text names where its message has no total: the most that a framework may get of it."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice

from memsheet.catalog import devices_called
from memsheet.diagnose.interval import Interval, size_words
from memsheet.frozen import NamedTuple
from memsheet.units import GIB

_ENDS = r"(?=s?(?:[,.;:)]|\s{0,4}$|\s(?:GPUs?|cards?|with|and|but|\(|\d\d\s?GB)))"
"""What stands behind a card that is called by its number alone, and not behind a count."""
_NAMED = re.compile(
    r"(?:(?<=\dx)|(?<![\w./-]))(?:(?:RTX|GTX)[ -]?(?:PRO[ -]?)?A?\d{4}(?:[ -]?Ti)?(?:[ -]?Super)?|Titan RTX"
    r"|A(?:10G?|16|30|40|100|800)|H(?:20|100|200|800)|B(?:200|300)|L(?:4|20|40S?)|G[HB]200|V100S?|P100|T4"
    rf"|(?:(?<=\dx)|(?<=\dx )|(?<=\d )|(?<=one )|(?<=two )|(?<=gle )|(?<=ual )|(?<=my )|(?<= a )|(?<=\()|(?<=, )|(?<=on ))[345]0[6-9]0(?:[ -]?Ti)?{_ENDS}"
    rf"|^[345]0[6-9]0(?:[ -]?Ti)?{_ENDS}"
    r"|(?<=[.;!?)] )[345]0[6-9]0(?:[ -]?Ti)?(?=[.;!?](?:\s|$))"
    r"|MI(?:210|250X?|300[AX]|325X|350X|355X)|(?:TPU[ -]?)?v(?:5e|5p|6e)|TPU[ -]?v4)(?:s(?![\w-]))?"
    r"(?:[ -](?:SXM\d?|PCIe|NVL))?(?:[ -]?\(?(?P<size>\d{2,3})[ -]?Gi?B?(?![\w/]))?(?![\w/]|-[A-Za-z_])",
    re.IGNORECASE | re.MULTILINE,
)  # fmt: skip
"""A card as people write of it, and no part of a path or of a longer name."""
_SIZED = re.compile(r"(?<![\w.,/-])(\d{1,3})[ -]?Gi?B (?:(?:of )?VRAM|(?:NVIDIA |AMD )?(?:GPU|card)s?)\b")
_PLURAL = re.compile(r"(?<=[\dXGSie])s$")
MOST_NAMES = 64
LARGEST_CARD = 288 * 2**30
"""No card that is sold holds more (catalog/devices.toml)."""


class NamedCard(NamedTuple):
    """How a text calls its card, and the bytes that a framework gets at the most of each that is called so,
    the smallest first.
    """

    name: str
    sizes: tuple[int, ...]

    @property
    def most(self) -> int:
        """What the largest has."""
        return self.sizes[-1]

    def least_above(self, held: int) -> int:
        """What the smallest has that holds so many bytes, else the largest."""
        return next((size for size in self.sizes if size >= held), self.most)


@lru_cache(maxsize=8)
def card_in_text(text: str) -> NamedCard | None:
    """The largest card that a text names, by name or by its memory. A name that several sizes share
    (``A100``) may be any of them.
    """
    found = [
        NamedCard(f"card of {each[1]} GB", (int(each[1]) * GIB,))
        for each in islice(_SIZED.finditer(text), MOST_NAMES)
    ]
    for each in islice(_NAMED.finditer(text), MOST_NAMES):
        bare = _PLURAL.sub(
            "", text[each.start() : each.start("size") if each["size"] else each.end()].rstrip(" -(")
        )
        bare = f"TPU {bare}" if bare[:1] in "vV" and bare[1:2] in "56" else bare
        devices = devices_called(f"{bare} {each['size']}GB" if each["size"] else bare)
        if each["size"]:
            bare = f"{bare} of {each['size']} GB"
        found += (
            [
                NamedCard(
                    bare.upper() if bare.islower() else bare,
                    tuple(sorted({one.framework_high_bytes for one in devices})),
                )
            ]
            if devices
            else []
        )
    return max(found, key=lambda card: (card.most, len(card.sizes)), default=None)


def beyond_card(size: Interval | None, card: NamedCard | None) -> str:
    """In words that one request is more than the job's card has; empty where it is not, or none is known."""
    if size is None or card is None or size.low <= card.most:
        return ""
    return f"the {card.name} has {size_words(Interval(card.most, card.most))} at the most"
