"""What a server takes of a request and of its card, as data. An engine's file says what differs from the
usual (``memsheet/engines/<name>/facts.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.frozen import dataclass
from memsheet.plan.device import Device
from memsheet.plan.dtypes import DType
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan

Capability = tuple[int, int]
"""Compute capability of a card: (7, 5) is 7.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardNeeds:
    """The least compute capability that a server starts on. ``before``: the release from which on it holds no
    more, none where it holds to the newest; ``release``: one that it is known of.
    """

    units: Capability
    before: tuple[int, int, int] | None = None
    release: str = ""


ASKED = "asked"
"""The method of weights that a server is told to quantize, or whose checkpoint nobody has named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatNeeds:
    """What a server asks of a card and of a plan before it reads weights of a format.

    ``weights``: names of formats; ``methods``: what a checkpoint calls the way it was quantized, or ASKED,
    any where there is none; ``units``: the least compute capability; ``dtypes``: what is computed in, any
    where there is none; ``before``: the release from which on it holds no more. A release has every need
    whose row holds.
    """

    weights: tuple[str, ...]
    methods: tuple[str, ...] = ()
    units: Capability = (0, 0)
    dtypes: tuple[DType, ...] = ()
    before: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Of cards: ``card_needs``, what the server starts on, the oldest releases first; ``bf16_units``, a
    compute capability below which it computes nothing in bf16; ``casts_down``, it casts to fp16 there
    whatever is asked for, and refuses nothing; ``wants_share_free``, it stops where less of the card is free
    at its start than the share of all of it that is asked for.

    Of families: ``overflowing``, those that it does not compute in fp16; ``lowers_since``, the release from
    which on it knows them, and takes another dtype by itself where nobody says one and the card or the family
    has none for the checkpoint's.

    Of kernels: ``own_kernels``, they are the engine's own and run on older cards too; ``writes_scores``, its
    sdpa is torch's, which makes matrices of scores where it has no fused kernel; ``unpacks_eight_bits``, an
    eight-bit cache is unpacked by kernels on cards that convert no such numbers; ``refuses_cache``, whether
    those that are left for a plan's cache on such a card refuse it.

    Of requests: ``library_modules``, it runs the transformers library's own modules; ``derives_length``, a
    sequence where nobody says is as long as what it derives from a config, scaling and all; ``own_padding``,
    it pads a vocabulary by a rule of its own, or not at all; ``own_compute``, whether what a plan computes in
    follows from the format of its weights; ``unpacks_gguf``, a GGUF file's tensors are turned into the
    precision while they are read.

    Of weights: ``format_needs``, what formats of them ask of cards and dtypes; ``loads_cut_experts``, the
    first release that is known to load experts which ranks cut inside a block of one
    scale, where it is not any or none.
    """

    card_needs: tuple[CardNeeds, ...] = ()
    bf16_units: Capability | None = None
    casts_down: bool = False
    wants_share_free: bool = False
    overflowing: frozenset[str] = frozenset()
    lowers_since: tuple[int, ...] | None = None
    own_kernels: bool = False
    writes_scores: bool = True
    unpacks_eight_bits: bool = False
    library_modules: bool = False
    derives_length: bool = False
    own_padding: bool = False
    own_compute: Callable[[Plan], bool] = lambda _: False
    unpacks_gguf: bool = False
    format_needs: tuple[FormatNeeds, ...] = ()
    loads_cut_experts: tuple[int, int, int] | None = None
    refuses_cache: Callable[[Plan, Device, ModelSpec | None], bool] = lambda *_: False
