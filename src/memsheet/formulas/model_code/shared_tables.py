"""What a decoder's layers share, and when backward lets go of it."""

from __future__ import annotations

from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.frozen import dataclass


@dataclass(frozen=True, slots=True)
class LetGo:
    """What is gone when backward comes to what lies between two stacks (``masks``, ``gradients``), and when
    it has passed that (``after``). ``end``: masks that are there beside the embeddings, where none is
    counted, with those that were let go.
    """

    masks: BytesByPath = EMPTY
    gradients: BytesByPath = EMPTY
    after: BytesByPath = EMPTY
    end: BytesByPath = EMPTY
