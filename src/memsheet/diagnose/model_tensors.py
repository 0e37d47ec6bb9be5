"""Tensors of a model that a text names: its weights, what is gathered or kept of them at once, and what its
layers make of tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice

from memsheet.catalog import find_model
from memsheet.diagnose.named_models import named_entries
from memsheet.errors import InputError
from memsheet.exchange.formats.megatron.described import described_stack
from memsheet.frozen import NamedTuple
from memsheet.plan.model import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Mixer,
    ModelSpec,
    Moe,
    Recurrent,
    Role,
    StateSpace,
    Weight,
)
from memsheet.readers.megatron_sizes import read_megatron_sizes
from memsheet.readers.model import read_model

MATRICES = (Role.LINEAR, Role.EMBEDDING, Role.HEAD, Role.EXPERT)
MOST_NAMES, MOST_MODULES, MOST_MODELS = 3, 5, 8
"""Names that tensors of one shape are given, and modules that they are of; models that are looked into."""
_WORLD = re.compile(
    r"\b(?:world[_ ]?size|nproc_per_node|num_processes|n_gpus_per_node|num_gpus|n_?gpus|data_parallel_size|dp_size|dp_degree)[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,5})\b",
    re.IGNORECASE,
)  # fmt: skip
"""Ranks that share states, as launchers and configurations call them."""
_CARDS = re.compile(
    r"(?<![\w.])(\d{1,4})\s?[x×]\s?(?:NVIDIA |AMD )?(?:[ABHLV]\d{1,3}|GH?200|MI\d{3}|RTX)"
    r"|(?<![\w.])(\d{1,4})[ -]GPUs?\b",
)
"""So many cards, as people write of them."""
_TENSOR_PARALLEL = re.compile(
    r"(?<![a-z])(?:tensor[_-](?:model[_-])?parallel(?:[_-]size|[_-]degree)?|tp[_-]?(?:size|degree)?)[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(\d{1,3})\b",
    re.IGNORECASE,
)  # fmt: skip
"""Ranks over which each layer is cut, likewise."""
_MEGATRON_FLAG = re.compile(
    r"(?<![\w-])(--[a-z][a-z0-9-]{1,50})(?:[ =]{1,3}\\?\s{0,3}([\w.]{1,40}))?(?![\w.])"
)
_GRID = re.compile(
    r"grid_thw[\"']?\]?[^\[\n]{0,40}((?:[\[\s,]{1,12}\d{1,4},\s{0,4}\d{1,4},\s{0,4}\d{1,4}\]){1,64})"
)
_TRIPLE = re.compile(r"(\d{1,4}),\s{0,4}(\d{1,4}),\s{0,4}(\d{1,4})\]")
"""Frames, rows and columns of patches, as processors of pictures hand them on."""


class Shape(NamedTuple):
    """Axes of a tensor and what it is; ``cut``: the axis that tensor parallelism cuts, none where it is whole
    on each rank.
    """

    axes: tuple[int, ...]
    words: str
    cut: int | None = None
    padding: int = 0
    """Positions that each sequence has more than tokens."""

    def share(self, ranks: int) -> tuple[int, ...] | None:
        """Axes of one rank's share; None where it is not cut evenly."""
        if self.cut is None or self.axes[self.cut] % ranks:
            return None
        return tuple(size // ranks if axis == self.cut else size for axis, size in enumerate(self.axes))

    @property
    def elements(self) -> int:
        return math.prod(self.axes)


@lru_cache(maxsize=8)
def named_specs(text: str) -> tuple[ModelSpec, ...]:
    """The models that a text names whose code is written down."""
    found = []
    for entry in islice(named_entries(text), MOST_MODELS):
        with suppress(InputError):
            found.append(read_model(dict(entry), catalog=find_model))
    return tuple(found) or _spec_of_flags(text)


def _spec_of_flags(text: str) -> tuple[ModelSpec, ...]:
    """The model that Megatron-LM's own flags in a text describe, where they say its vocabulary too."""
    flags: dict[str, int | str | bool] = {}
    for name, value in _MEGATRON_FLAG.findall(text):
        flags.setdefault(name, int(value) if value.isdigit() else value or True)
    sizes = described_stack(flags) if "--vocab-size" in flags else None
    with suppress(InputError):
        return (read_megatron_sizes(sizes),) if sizes else ()
    return ()


@lru_cache(maxsize=8)
def weights_of_models(text: str, *, fused: bool, apart: bool = True) -> tuple[Shape, ...]:
    """The matrices of the models that a text names, each shape once; ``fused``: and those that servers keep
    as one; ``apart``: and what these are made of.
    """
    named: dict[tuple[int, ...], dict[str, Shape]] = {}
    for shape in _matrices_of_models(text, fused=fused, apart=apart):
        named.setdefault(tuple(sorted(shape.axes)), {}).setdefault(
            shape.words, shape
        )  # or its transpose, which is as large
    return tuple(
        next(iter(alike.values()))._replace(words=" or ".join(list(alike)[:MOST_MODULES]))
        for alike in named.values()
    )


def _matrices_of_models(text: str, *, fused: bool, apart: bool) -> Iterator[Shape]:
    for spec in named_specs(text):
        for weight in (*spec.embeddings.weights, *spec.head.weights):
            if weight.role in MATRICES:
                yield Shape(weight.shape, "embedding or output projection", weight.cut)
        for block in spec.blocks():
            joined = _joined_weights_of(block) if fused else {}
            parts = () if apart else [weight.path for each in joined.values() for weight in each]
            yield from (
                Shape(w.shape, w.path.removesuffix(".weight"), w.cut)
                for w in block.weights
                if w.role in MATRICES and w.path not in parts
            )
            yield from _fused_weights(block) if fused else ()


def _fused_weights(block: Block) -> Iterator[Shape]:
    """Projections of one module that read the same input, as one matrix."""
    for name, parts in _joined_weights_of(block).items():
        yield Shape((sum(weight.shape[0] for weight in parts), parts[0].shape[1]), name, 0)


def _joined_weights_of(block: Block) -> dict[str, list[Weight]]:
    """Weights of a block that servers keep as one, by its name."""
    rows: dict[str, list[Weight]] = {}
    for weight in block.weights:
        module, _, name = weight.path.removesuffix(".weight").rpartition(".")
        kind = {
            "q_proj": "qkv",
            "k_proj": "qkv",
            "v_proj": "qkv",
            "gate_proj": "gate_up",
            "up_proj": "gate_up",
        }.get(name)
        if kind and len(weight.shape) == 2:
            rows.setdefault(f"{module}.{kind}_proj", []).append(weight)
    return {
        name: parts
        for name, parts in rows.items()
        if len({weight.shape[1] for weight in parts}) == 1 and len(parts) > 1
    }


OUTSIDE = "the weights outside of layers (embeddings, last norm, output projection)"
"""What is left to the outermost unit where each layer is one of its own."""


@lru_cache(maxsize=8)
def units_of_models(text: str, ranks: int = 1) -> tuple[Shape, ...]:
    """Elements that a wrapper gathers or keeps at once: a layer, what lies outside of layers, all of it.
    ``ranks``: over which tensor parallelism cuts each weight that it can.
    """
    shapes: dict[int, str] = {}

    def held_of(weights: Iterable[Weight]) -> int:
        return sum(
            w.elements // (ranks if w.cut is not None else 1) for w in weights if w.role is not Role.BUFFER
        )

    for spec in named_specs(text):
        outer = held_of((*spec.embeddings.weights, *spec.head.weights))
        norms = (*spec.embeddings.norms, *(norm for stack in spec.stacks for norm in stack.final_norms))
        outer += sum(held_of(norm.weights) for norm in norms)
        beside = held_of(spec.extras)
        if beside and not spec.ahead:
            shapes.setdefault(outer + beside, OUTSIDE)
        whole = outer + beside
        for stack in spec.stacks:
            for run in stack.runs:
                for block in run.pattern:
                    layer = held_of(block.weights)
                    shapes.setdefault(layer, "a layer's weights")
                    whole += run.count * layer
        shapes.setdefault(outer, OUTSIDE)
        last = [weight for stack in spec.stacks for norm in stack.final_norms for weight in norm.weights]
        shapes.setdefault(held_of((*last, *spec.head.weights)), "the output projection and the last norm")
        shapes.setdefault(held_of(spec.embeddings.weights), "the embeddings")
        for tower in spec.towers:
            blocks = [(run.count, block) for run in tower.stack.runs for block in run.pattern]
            last = [weight for norm in tower.stack.final_norms for weight in norm.weights]
            whole += sum(count * held_of(block.weights) for count, block in blocks)
            whole += held_of((*tower.embeddings, *tower.projector, *last))
        shapes.setdefault(whole, "all weights")
    return tuple(Shape((elements,), words) for elements, words in shapes.items() if elements)


@lru_cache(maxsize=8)
def caches_of_models(text: str) -> tuple[Shape, ...]:
    """Axes of what a layer keeps of a token: its key, as large as its value, or what latent attention keeps;
    heads may be cut.
    """
    shapes: dict[tuple[int, ...], Shape] = {}
    for spec in named_specs(text):
        for block in spec.blocks():
            for mixer in block.mixers:
                if isinstance(mixer, Attention) and not mixer.shares_kv:
                    axes: tuple[int, ...] = (mixer.kv_heads, mixer.head_dim)
                    shapes.setdefault(axes, Shape(axes, "keys, or values, of a layer", 0))
                elif isinstance(mixer, LatentAttention):
                    axes = (mixer.kv_lora_rank + mixer.qk_rope_head_dim,)
                    shapes.setdefault(axes, Shape(axes, "latent keys and values of a layer"))
    return tuple(shapes.values())


@lru_cache(maxsize=8)
def widths_of_models(text: str, *, fused: bool = False) -> tuple[Shape, ...]:
    """Elements of a token in what the decoders' layers make, or the encoders' where there are no decoders:
    the input and output of each matrix, and of its experts, to which a token goes several times. ``fused``:
    and of those that servers keep as one.
    """
    blocks = dict.fromkeys(
        block
        for spec in named_specs(text)
        for stack in (tuple(each for each in spec.stacks if each.role == "decoder") or spec.stacks)
        for run in stack.runs
        for block in run.pattern
    )
    return _named_alike(
        shape for block in blocks for shape in (*_widths_of_block(block), *_fused_widths(block, fused=fused))
    )


def _named_alike(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """Each number of elements once, called what all of its like are called; the widest cut first."""
    names: dict[tuple[int, bool, int], dict[str, Shape]] = {}
    for shape in shapes:
        names.setdefault((shape.elements, shape.cut is None, shape.padding), {}).setdefault(
            shape.words, shape
        )
    return tuple(
        next(iter(alike.values()))._replace(words=_joined_words(tuple(alike))) for alike in names.values()
    )


_OF_MODULE = re.compile(r"what (\S+) (makes|reads)")


def _joined_words(phrases: tuple[str, ...]) -> str:
    """What tensors that are as large are called, as one phrase."""
    of_modules = [found.groups() for each in phrases if (found := _OF_MODULE.fullmatch(each))]
    parts = [each for each in phrases if not _OF_MODULE.fullmatch(each)][:MOST_NAMES]
    for verb in ("makes", "reads") if not parts else ("makes",):
        modules = [module for module, does in of_modules if does == verb][:MOST_MODULES]
        parts += [f"what {' or '.join(modules)} {verb}"] if modules else []
    return ", or ".join(parts) or phrases[0]


def _fused_widths(block: Block, *, fused: bool) -> Iterator[Shape]:
    for weight in _fused_weights(block) if fused else ():
        yield Shape(weight.axes[:1], f"what {weight.words} makes", 0)


def _widths_of_block(block: Block) -> Iterator[Shape]:
    yield Shape((block.hidden,), "hidden states")
    moe = block.feed_forward if isinstance(block.feed_forward, Moe) else None
    if moe is not None:
        of_token = moe.experts_per_token
        yield Shape(
            (of_token, block.hidden), f"hidden states, once for each of a token's {of_token} experts,"
        )
        yield Shape((of_token, moe.intermediate), f"what {of_token} experts make inside", 1)
        if moe.gated:
            yield Shape((of_token, 2 * moe.intermediate), f"gate and up of {of_token} experts", 1)
    for weight in block.weights:
        if weight.role is Role.LINEAR and len(weight.shape) == 2:
            rows, columns = reversed(weight.shape) if weight.transposed else weight.shape
            cut = weight.cut if weight.cut is None or not weight.transposed else 1 - weight.cut
            name = weight.path.removesuffix(".weight")
            yield Shape((rows,), f"what {name} makes", 0 if cut == 0 else None)
            yield Shape((columns,), f"what {name} reads", 0 if cut == 1 else None)
    for mixer in block.mixers:
        yield from _widths_of_mixer(mixer)


def _widths_of_mixer(mixer: Mixer) -> Iterator[Shape]:
    """What attention makes of the heads of a token, of which positions turn all elements or some, by halves;
    and what a scan makes of its channels and states.
    """
    if isinstance(mixer, Attention):
        yield Shape((mixer.heads,), "what heads' scores sum up to", 0)
        for heads, words in ((mixer.heads, "queries"), (mixer.kv_heads, "keys")):
            yield Shape((heads, mixer.head_dim), f"{words} of all heads", 0)
            if turned := mixer.rotary_dim:
                yield Shape((heads, turned // 2), f"half of what positions turn of {words}", 0)
            if 0 < turned < mixer.head_dim:
                yield Shape((heads, turned), f"what positions turn of {words}", 0)
                yield Shape((heads, mixer.head_dim - turned), f"what positions leave of {words}", 0)
    elif isinstance(mixer, LatentAttention):
        yield Shape((mixer.heads,), "what heads' scores sum up to", 0)
        yield Shape((mixer.qk_rope_head_dim,), "what positions turn of keys, which heads share")
        turned, plain, valued = mixer.qk_rope_head_dim, mixer.qk_nope_head_dim, mixer.v_head_dim
        for size, words in (
            (plain + turned, "queries or keys of all heads"),
            (plain, "what positions leave of queries or keys"),
            (valued, "values of all heads"),
            (plain + valued, "keys and values of all heads"),
            (turned, "what positions turn of queries"),
            (turned // 2, "half of what positions turn of queries"),
        ):
            yield Shape((mixer.heads, size), words, 0)
    elif isinstance(mixer, StateSpace):
        yield Shape((mixer.inner,), "channels of a scan", 0)
        width = mixer.inner + 2 * mixer.groups * mixer.state
        yield Shape((width,), "what a scan's convolution makes", 0, mixer.conv_kernel - 1)
        yield Shape((width,), "what a scan's convolution makes", 0)
        yield Shape((mixer.heads or mixer.inner, mixer.state), "states of a scan", 0)
        yield Shape((mixer.state,), "what goes into or out of a scan's states")
        if mixer.chunk and mixer.heads:
            yield Shape((mixer.heads, mixer.chunk), "what a chunk's tokens are to one another in a scan", 0)
            states = mixer.inner * mixer.state // mixer.chunk
            yield Shape((states,), "states of a scan's chunks", 0)
            yield Shape((states,), "states of a scan's chunks and those before them", 0, mixer.chunk)
    elif isinstance(mixer, LinearAttention):
        keys = mixer.key_heads * mixer.key_head_dim
        width = 2 * keys + mixer.value_heads * mixer.value_head_dim
        yield Shape((width,), "what a scan's convolution makes", 0)
        yield Shape((width,), "what a scan's convolution makes", 0, mixer.conv_elements // width)
        yield Shape((mixer.value_heads, mixer.value_head_dim), "values of a scan", 0)
        yield Shape((mixer.value_heads, mixer.key_head_dim), "queries or keys of a scan, for each value", 0)
        yield Shape((mixer.key_heads, mixer.key_head_dim), "queries or keys of a scan", 0)


@lru_cache(maxsize=8)
def widths_of_towers(text: str) -> tuple[Shape, ...]:
    """Elements of a patch in what the layers of a model's eyes make, and in the pixels that they read."""
    shapes: list[Shape] = []
    for tower in (tower for spec in named_specs(text) for tower in spec.towers):
        shapes += [Shape((math.prod(w.shape[1:]),), "pixels") for w in tower.embeddings if len(w.shape) > 2]
        for block in (block for run in tower.stack.runs for block in run.pattern):
            shapes.extend(_widths_of_block(block))
    return _named_alike(shapes)


def heads_of_models(text: str) -> tuple[int, ...]:
    """Attention heads of the models that a text names."""
    mixers = (mixer for spec in named_specs(text) for mixer in spec.mixers())
    return tuple(dict.fromkeys(mixer.heads for mixer in mixers if isinstance(mixer, Attention)))


def has_scans(text: str) -> bool:
    """Whether a model that a text names has layers that scan their tokens."""
    mixers = (mixer for spec in named_specs(text) for mixer in spec.mixers())
    return any(isinstance(mixer, StateSpace | LinearAttention | Recurrent) for mixer in mixers)


def has_sinks(text: str) -> bool:
    """Whether attention of a model that a text names has a column of scores more."""
    mixers = (mixer for spec in named_specs(text) for mixer in spec.mixers())
    return any(isinstance(mixer, Attention) and mixer.sinks for mixer in mixers)


def heads_of_towers(text: str) -> tuple[int, ...]:
    """Attention heads of the layers of a model's eyes."""
    blocks = (
        block for spec in named_specs(text) for tower in spec.towers for run in tower.stack.runs for block in run.pattern
    )  # fmt: skip
    return tuple(
        dict.fromkeys(
            mixer.heads for block in blocks for mixer in block.mixers if isinstance(mixer, Attention)
        )
    )


def patches_in_text(text: str) -> tuple[int, ...]:
    """Patches of all pictures that a processor's grids say, of those of one line together and of each."""
    counts: dict[int, None] = {}
    for grids in _GRID.findall(text):
        each = [math.prod(int(size) for size in triple) for triple in _TRIPLE.findall(grids)]
        counts |= dict.fromkeys((sum(each), *each))
    return tuple(count for count in counts if count)[:12]


def cut_in_text(text: str) -> int:
    """Over how many ranks a text says that each layer is cut; 1 where it does not, or says several."""
    counts = {int(number) for number in _TENSOR_PARALLEL.findall(text)} - {0}
    return counts.pop() if len(counts) == 1 else 1


def ranks_in_text(text: str) -> tuple[int, ...]:
    """Over how many ranks a text says that states lie; 1 first."""
    cards = (first or second for first, second in _CARDS.findall(text))
    counts = (int(number) for number in (*_WORLD.findall(text), *cards))
    return tuple(dict.fromkeys((1, *(count for count in counts if 1 < count <= 65_536))))[:6]
