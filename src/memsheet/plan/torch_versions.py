"""What torch did otherwise in older versions, as far as it changes what a step keeps.

The version is the one that ``engine_version`` names ("4.51.3 (torch 2.6.0)"). A year or month alone stands
for what was out when it began; any other text for the torch that was read.
"""

from __future__ import annotations

import re
from functools import lru_cache

Version = tuple[int, int]

RELEASES: tuple[tuple[str, Version], ...] = (
    ("2021-06", (1, 9)), ("2021-10", (1, 10)), ("2022-03", (1, 11)), ("2022-06", (1, 12)), ("2022-10", (1, 13)), ("2023-03", (2, 0)),
)  # fmt: skip
"""When minor versions were first out (pytorch/pytorch, release notes)."""
READ: Version = (2, 13)

SOFTMAX_FORGETS_INPUT: Version = (1, 11)
"""Before it softmax and log_softmax saved their input beside their output (pytorch/pytorch pull request
65242, issue 49600).
"""
GRADIENTS_GO: Version = (2, 0)
"""Before it Module.zero_grad and Optimizer.zero_grad filled gradients with zeros and left them
(pytorch/pytorch 2.0.0 torch/nn/modules/module.py, zero_grad, set_to_none=True by default), as the Trainer
called them (transformers 4.16 trainer.py, model.zero_grad()).
"""
EIGHT_BIT_OF_ITS_OWN: Version = (1, 12)
"""Out in June 2022, as was transformers 4.20, the first whose Trainer made an 8-bit optimizer and had it keep
embeddings in 32 bits (trainer.py, get_optimizer_cls_and_kwargs); before, people handed it one of
bitsandbytes, which treats all tensors alike.
"""


@lru_cache(maxsize=64)
def torch_version(engine_version: str | None) -> Version:
    """The minor version of torch that an engine's version names."""
    if not engine_version:
        return READ
    if named := re.search(r"torch (\d{1,4})\.(\d{1,4})", engine_version):
        return int(named[1]), int(named[2])
    if not (date := re.fullmatch(r"(\d{4})(-\d{2})?", engine_version)):
        return READ
    began = f"{date[1]}{date[2] or '-01'}"
    out = [version for month, version in RELEASES if month < began]
    return (out or [RELEASES[0][1]])[-1] if began <= LAST_LISTED else READ


LAST_LISTED = "2023-03"


def softmax_keeps_input(engine_version: str | None) -> bool:
    """Whether softmax saves what it was given."""
    return torch_version(engine_version) < SOFTMAX_FORGETS_INPUT


def gradients_stay(engine_version: str | None) -> bool:
    """Whether gradients are zeroed where they lie, and so are there through every forward."""
    return torch_version(engine_version) < GRADIENTS_GO


def eight_bit_alike(engine_version: str | None) -> bool:
    """Whether an 8-bit optimizer keeps the states of embeddings in 8 bits, because a person made it."""
    return torch_version(engine_version) < EIGHT_BIT_OF_ITS_OWN


def old_torch_note(engine_version: str | None) -> str:
    """What a version before 2.0 is read as, in words."""
    major, minor = torch_version(engine_version)
    softmax = ", and softmax keeps its input" if softmax_keeps_input(engine_version) else ""
    return (
        f"engine_version {engine_version} is read as torch {major}.{minor}: gradients are zeroed where "
        f"they lie{softmax}"
    )
