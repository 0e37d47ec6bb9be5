"""What changes from release to release of a server that finds its pool by a profiling run."""

from __future__ import annotations

from enum import Enum

from memsheet.frozen import dataclass


class Sampler(Enum):
    """What the profiling run's sampler makes of the logits; ``engines/vllm/sampling.py`` says in bytes."""

    SORTED = "sorted"  # an fp32 copy, and PyTorch's sort of every row
    MASKED = "masked"  # an fp32 copy, masked logits and their softmax (or softmax and noise)
    COPIED = "copied"  # an fp32 copy alone, by a runner that counts every request's tokens
    PLAIN = "plain"  # the logits as they are, by the same
    COUNTED = "counted"  # as masked, by the same

    @property
    def counts(self) -> bool:
        """Whether the runner keeps a count of every word for every request."""
        return self in (Sampler.COPIED, Sampler.PLAIN, Sampler.COUNTED)


class ProfiledPictures(Enum):
    """Pictures that the profiling run shows to a tower, and what it keeps of them;
    ``engines/vllm/pictures.py`` says in bytes.
    """

    NONE = "none"  # none by themselves, before the language model
    MORE = "more"  # enough for a batch, and what the tower makes of them as it is
    WHOLE = "whole"  # those that a batch has room for, likewise
    BATCH = "batch"  # the same, and each in a copy as long as a batch
    PICTURE = "picture"  # the same, and each in a copy as long as the places it takes where those are more


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Facts of a release. It stands for all after it until the next one in the table."""

    tag: str
    since: tuple[int, ...]
    memory_fraction: float
    sampler: Sampler
    # the driver's context is taken from the fraction (memory used, not its growth since the process began)
    counts_context: bool
    counts_graphs: bool = False  # so are the CUDA graphs, by an estimate
    counts_gaps: bool = False  # so is what segments of weights hold beyond them
    takes_flashinfer: bool = (
        False  # FlashInfer draws the tokens where it is installed, not where it is asked for
    )
    window_pages: bool = (
        True  # a sliding window's layers have blocks of their own, in groups that share one pool
    )
    in_flight: int = 1  # batches that may be scheduled and not yet settled, whose tokens a window still holds
    state_pages: int = 1  # pages of recurrent state that a request may hold
    checkpoints: int = 0  # more of them in layers that export one inside a prompt
    chunked: bool = True  # long prompts are read in parts of max_num_batched_tokens
    sized_by_card: bool = True  # defaults are larger on large cards
    lines: str = "v1"  # how its start-up lines are worded
    shown: ProfiledPictures = ProfiledPictures.WHOLE
    near_group: bool = (
        False  # groups of layers are as large as the larger kind where the kinds are nearly as many
    )
    other: Sampler | None = None  # that of the runner that some families have
    families: frozenset[str] = frozenset()

    def sampler_of(self, family: str) -> Sampler:
        """The sampler of a family's runner."""
        return self.other if self.other is not None and family in self.families else self.sampler
