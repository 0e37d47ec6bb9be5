"""Which card a file says its job runs on: labels of Kubernetes' nodes, and words of services and schedulers.

Labels: NVIDIA/k8s-device-plugin v0.17 docs/gpu-feature-discovery/README.md (nvidia.com/gpu.product, with
-SHARED behind it where cards are shared in time), cloud.google.com/kubernetes-engine/docs/how-to/gpus,
kubernetes staging/src/k8s.io/api/core/v1/well_known_labels.go (node.kubernetes.io/instance-type),
karpenter-provider-aws 1d927085 website/content/en/preview/concepts/scheduling.md, docs.coreweave.com
(gpu.nvidia.com/class).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from memsheet.catalog import find_device, rented_cards
from memsheet.errors import InputError
from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

LABELS = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator", "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type", "karpenter.k8s.aws/instance-gpu-name", "eks.amazonaws.com/instance-gpu-name",
    "k8s.amazonaws.com/accelerator", "gpu.nvidia.com/class", "gpu.nvidia.com/model",
)  # fmt: skip
"""Labels of nodes whose values name a card, or a machine that clouds rent."""
CALLED = {
    "nvidia-h100-mega-80gb": "H100-80GB", "H100_NVLINK_80GB": "H100-80GB", "A100_NVLINK_80GB": "A100-80GB", "A100_NVLINK": "A100-40GB",
    "NVIDIA-GH200-480GB": "GH200-96GB", "AMD_Instinct_MI300X_OAM": "MI300X", "A100-40G": "A100-40GB", "A100-80G": "A100-80GB",
}  # fmt: skip
"""Values of labels that are no spelling of a card's own name, by the device."""
PART = late_pattern(r"-mig-|\bmig-\d", re.IGNORECASE)
SHARED = late_pattern(r"-shared$", re.IGNORECASE)
"""A part of a card, of which nothing is said here, and cards that several containers share in time, each of
which sees all of the memory."""
_VALUE = r"[\"']?([\w.][\w.+ -]*?)[\"']?"
_LABEL = "|".join(map(re.escape, LABELS))
PLACES = (
    rf"(?:^[ \t-]*|[{{,][ \t]*)[\"']?(?:{_LABEL})[\"']?[ \t]*:[ \t]*{_VALUE}[ \t]*(?=[,}}#]|$)",
    rf"\bkey[\"']?:[ \t]*[\"']?(?:{_LABEL})[\"']?[ \t]*[,\n][ \t]*(?:[\"']?operator[\"']?:[ \t]*[\"']?In[\"']?[ \t]*[,\n][ \t]*)?[\"']?values[\"']?:[ \t]*(?:\[[ \t]*|\n[ \t]*-[ \t]*){_VALUE}[ \t]*(?=[\],\n]|$)",
    r"\bgpu_type[\"']?[ \t]*[:=][ \t]*[\"']([\w.-]+)[\"']",  # BentoML's resources
    r"\baccelerator_type[\"']?[ \t]*[:=][ \t]*[\"']?([\w.-]+)[\"']?[ \t]*(?:[,}#)]|$)",  # Ray Serve's LLMConfig
    r"@\w+\.(?:function|cls)\([^@]*?\bgpu=\[?f?[\"']([\w.-]+)!?(?::[^\"']*)?[\"']",  # Modal
    r"@\w+\.(?:function|cls)\([^@]*?\bgpu=modal\.gpu\.(\w+)\(",
    r"^[ \t]*accelerators:[ \t]*[{\"']?[ \t]*([\w.-]+)[ \t]*:[ \t]*\d+[ \t]*[}\"']?[ \t]*(?:#.*)?$",  # SkyPilot
    rf"^[ \t]*gpu:[ \t]*\n(?:[ \t]+\w+:[^\n]*\n){{0,4}}?[ \t]+type:[ \t]*{_VALUE}[ \t]*(?:#.*)?$",  # values of charts
    rf"\bgpu:[ \t]*\{{[^}}\n]{{0,80}}?\btype:[ \t]*{_VALUE}[ \t]*[,}}]",
    r"^#SBATCH\s+--(?:gres=gpu|gpus(?:-per-node|-per-task)?)[=:]([A-Za-z][\w.-]*):\d+",  # Slurm
)  # fmt: skip
"""Where files name a card, each with its name as the group."""


CHOICE = late_pattern(r"^[ \t]*accelerators:[ \t]*[\[{]([^\]}\n]{1,400})[\]}]", re.MULTILINE)
"""Several kinds of cards, of which SkyPilot takes one (docs.skypilot.co yaml-spec, accelerators)."""
_CHOSEN = late_pattern(r"[\"']?(?P<card>[A-Za-z][\w.-]*)[ \t]*(?::[ \t]*(?P<count>\d{1,4}))?[\"']?")


class NamedCard(NamedTuple):
    """A card that a file names: the device, how many of it one machine has where a machine is named, and the
    words that say so.
    """

    card: str
    each: int | None
    words: str


def named_card(texts: Iterable[str]) -> NamedCard | None:
    """The card that files say their job runs on, where all that name one name the same."""
    found = {held.card: held for text in texts for held in _cards_in(text)}
    return next(iter(found.values())) if len(found) == 1 else None


def _cards_in(text: str) -> Iterator[NamedCard]:
    for told in CHOICE.finditer(text):
        held = [(one["card"], int(one["count"] or 1)) for one in _CHOSEN.finditer(told[1])]
        if len(held) > 1 and (least := least_cards(held)) is not None:
            words = f"{', '.join(f'{card}:{count}' for card, count in held)}, any of them: the least"
            yield NamedCard(least[0], least[1], words)
    for place in PLACES:
        for told in re.finditer(place, text, re.MULTILINE):
            if (card := card_called(told[1])) is not None:
                yield card


def least_cards(choice: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Of cards with their counts those that have the least memory together, by the device's name; None where
    one of them is not known.
    """
    called = [(card_called(name), count) for name, count in choice]
    known = [(one.card, count) for one, count in called if one is not None]
    if not known or len(known) != len(called):
        return None
    return min(known, key=lambda one: find_device(one[0]).framework_bytes * one[1])


def card_called(name: str) -> NamedCard | None:
    """The card of a label's value, None where nobody knows it or where it is a part of one."""
    if PART.search(name):
        return None
    if (rented := rented_cards(f"1x{name}")) is not None:
        return NamedCard(rented.card, rented.each, name)
    spelt = CALLED.get(name, SHARED.sub("", name))
    try:
        device = find_device(spelt)
    except InputError:
        return None
    return NamedCard(
        spelt if device.assumed else device.name, None, name
    )  # of several sizes: told on the sheet
