"""A requested size → a tensor of the model that a text names or prints: a weight, weights gathered whole, a
rank's flat states, what a layer makes of its tokens.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from memsheet.diagnose.candidates import (
    BOTH_KNOWN,
    IN_16_BITS,
    RAISED,
    WIDTHS,
    Axes,
    Candidate,
    Widths,
    fit_of,
    raises,
)
from memsheet.diagnose.cures.tables import EIGHT_BITS
from memsheet.diagnose.frames import BACKWARD, CHECKPOINT, LOGITS, REDUCED, SCORES, STEP_SIZES, Frame
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.log_programs import SERVERS
from memsheet.diagnose.message import Term
from memsheet.diagnose.model_tensors import (
    Shape,
    caches_of_models,
    cut_in_text,
    patches_in_text,
    ranks_in_text,
    units_of_models,
    weights_of_models,
    widths_of_models,
    widths_of_towers,
)
from memsheet.diagnose.named_models import fixed_lengths, printed_weights
from memsheet.diagnose.signs import Signs
from memsheet.diagnose.tracebacks import writes_scores
from memsheet.frozen import NamedTuple

OF_WEIGHTS = ("parameters", "optimizer_states", "unsharded_parameters", "master_weights", "gradients")
"""Components of which a single tensor may be a whole weight, or as large as one."""
FLAT = ("optimizer_states", "master_weights", "gradients", "unsharded_parameters")
"""Components that wrappers keep as one tensor of many weights."""
FUSED_LOSS = re.compile(
    r"\bfused_linear_cross_entropy(?:_forward)?\b|LigerFusedLinear|fused_linear_(?:ppo|(?:unpaired_)?preference)\.py"
)  # fmt: skip
GRADIENT = Frame("gradients", "head", "the output projection's gradient, which such a loss makes in forward")
"""linkedin/Liger-Kernel v0.6.2, src/liger_kernel/ops/fused_linear_cross_entropy.py."""
WEIGHT_GRADIENT = Frame("gradients", "model", "a weight's gradient, made in backward")
LAYER = Frame("saved_activations", "model", "a layer")
WEIGHT = Frame("parameters", "model", "a weight, a copy, its gradient or state")
COPY = Frame("parameters", "model", "a weight's copy in 16 bits, which autocast makes")
CACHE = Frame("kv_cache", "model", "the KV cache")
_OF_LINEAR = re.compile(r"\bF\.linear\(")
_MADE_OF_TOKENS = re.compile(
    r"hidden_states|(?:query|key|value)s?(?:_states)?\b|residual|attn_|\b[qkvx]\b|activation|logits"
    r"|intermediate_cache"
)
"""What a line of code calls what is made of tokens."""
EITHER = " or "
"""What stands between two shapes of which tokens are not said."""
HALVES = "or in 16 bits of twice as many (how many sequences there are is not said)"
_DTYPE = re.compile(r"\b(?:torch_)?dtype[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?:torch\.)?b?f(?:loat|p)?(16|32)\b")
"""Bits in which weights are loaded, where a text says it."""
_BY_EXPERT = re.compile(
    r"enable[_-]expert[_-]parallel|\bep[_-]?size\b|expert[_-]model[_-]parallel", re.IGNORECASE
)
"""What cuts stacked weights of experts by the expert."""
_CACHED = re.compile(
    r"(?:KV cache size: {1,3}|#tokens: {1,3}|max[_-]total[_-](?:num[_-])?tokens[\"']?[ =:]{1,3})"
    r"(\d[\d,]{2,12})"
)
"""Tokens for which a server has a cache."""
_CACHED_IN_8_BITS = re.compile(r"kv[_-]cache[_-]dtype[\"']?[ =:]{1,3}[\"']?(?:fp8|int8)")
_CACHED_PAGE = re.compile(r"page[_-]size[\"']?[ =:]{1,3}(\d{1,4})\b")


class Sized(NamedTuple):
    """A tensor before its size is compared."""

    component: str
    path: str
    axes: tuple[int, ...]
    width: int
    dtype: str
    words: str
    rank: int = BOTH_KNOWN
    sure: bool = True
    """Whether no other product of the same size is as likely."""
    either: str = ""
    """The other one."""

    @property
    def size(self) -> int:
        size = self.width
        for axis in self.axes:
            size *= axis
        return size


def model_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
    """All that fit."""
    yield from _fitting_terms(
        asked,
        [
            *_layer_activations(signs, axes),
            *_whole_weights(signs, axes),
            *_joined_weights(signs),
            *_server_caches(signs, axes),
            *_feature_maps(signs),
            *_reduced_buckets(signs),
        ],
    )


def _fitting_terms(asked: Interval, tensors: list[Sized]) -> Iterator[Candidate]:
    for each in tensors:
        if fit := fit_of(asked, each.size):
            yield Candidate((each.rank, fit), Term(
                component=each.component, path=each.path, shape=f"[{', '.join(map(str, each.axes))}] {each.dtype}{each.either}",
                exact=fit == 2 and each.sure, words=each.words,
            ))  # fmt: skip


def _whole_weights(signs: Signs, known: Axes) -> Iterator[Sized]:
    """A weight, its gradient or a state of it, whole or a share of its rows."""
    frame = _frame_of_weights(signs)
    if frame is None:
        return
    serves = signs.program in SERVERS
    fused = serves or not (signs.program or signs.code)
    said = set(_DTYPE.findall(signs.text)) == {"16"}
    unsaid = frame is WEIGHT and known.tokens  # a weight's gradient, copy or state may be wider than it is
    halves = frame is COPY or (
        frame.component not in ("optimizer_states", "master_weights") and said and not unsaid
    )
    widths = WIDTHS[1:] if serves or halves else WIDTHS
    if frame.component == "optimizer_states" and EIGHT_BITS.search(signs.text):
        widths = (*widths, (1, "uint8"))
    shapes = {axes: Shape(axes, words, 0) for words, axes in printed_weights(signs.text, fused=fused)}
    shapes |= {each.axes: each for each in weights_of_models(signs.text, fused=fused, apart=not serves)}
    if fused:
        shapes |= {each.axes: each for each in map(_padded_rows, shapes.values())}
    cut = cut_in_text(signs.text)
    open_tokens = frame in (WEIGHT, COPY, WEIGHT_GRADIENT) and not known.tokens
    open_tokens = open_tokens or frame is CHECKPOINT  # weights, and states of them
    open_parts = serves and not _LAUNCHED.search(signs.text)
    by_expert = bool(_BY_EXPERT.search(signs.text))
    for shape in shapes.values():
        whole = shape._replace(
            cut=0 if len(shape.axes) > 2 and (by_expert or shape.cut is None) else shape.cut or 0
        )
        usual = (1, 2, 4, 8) if fused or signs.program == "Megatron-LM" else (1,)
        whole_too = () if serves and shape.cut is not None else (1,)
        shares = {parts: whole.share(parts) for parts in ((*whole_too, cut) if cut > 1 else usual)}
        for parts, axes in shares.items():
            if axes is not None:
                sure = parts in (1, cut) or open_parts
                yield from _weight_as(
                    frame, shape.words, axes, parts, sure=sure, widths=widths, alone=not open_tokens
                )
        for ranks in ranks_in_text(signs.text)[1:] if _BY_ROWS.search(signs.text) else ():
            rows, alone = -(-shape.axes[0] // ranks), not open_tokens
            for held, parts in ((rows, ranks), *(((rows * ranks, 1),) if shape.axes[0] % ranks else ())):
                axes = (held, *shape.axes[1:])
                yield from _weight_as(frame, shape.words, axes, parts, sure=True, widths=widths, alone=alone)


_LAUNCHED = re.compile(
    r"\bserve\b|launch_server|\bLLM\(|(?i:server_?args|engine_?args)|api_server|tensor[_-]parallel"
    r"|\btp(?:[_-]size)?\b"
)
"""What says how a server was started, over several cards or not."""
ROWS = 64
"""What servers make the rows of a vocabulary a multiple of (vllm/model_executor/layers/
vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE).
"""


def _padded_rows(shape: Shape) -> Shape:
    rows = -(-shape.axes[0] // ROWS) * ROWS if shape.words.startswith("embedding") else shape.axes[0]
    return shape._replace(axes=(rows, *shape.axes[1:]))


def _weight_as(
    frame: Frame, words: str, axes: tuple[int, ...], parts: int, *, sure: bool, widths: Widths, alone: bool
) -> Iterator[Sized]:
    """A weight, or one of several ranks' share of it, in the dtypes that it may have. ``alone``: whether what
    is made of tokens cannot be as large.
    """
    share = f" of {parts} ranks" if parts > 1 else ""
    product = " × ".join(f"{axis:,}" for axis in axes)
    for width, dtype in widths:
        yield Sized(
            frame.component, frame.path, axes, width, dtype,
            f"{dtype} {words}{share}, {product} × {width} bytes ({frame.words})", BOTH_KNOWN if sure else BOTH_KNOWN - 1, alone,
        )  # fmt: skip


def _frame_of_weights(signs: Signs) -> Frame | None:
    frame = signs.frame
    if frame is None:
        of_linear = _OF_LINEAR.search(signs.code) and signs.program not in SERVERS
        return COPY if of_linear else None if _MADE_OF_TOKENS.search(signs.code) else WEIGHT
    if frame is LOGITS:
        return GRADIENT if FUSED_LOSS.search(signs.text) else None
    if frame is BACKWARD:
        return WEIGHT_GRADIENT
    if frame.component in ("saved_activations", "temporaries") and _OF_LINEAR.search(signs.code):
        return COPY
    return frame if frame is STEP_SIZES or (frame and frame.component in OF_WEIGHTS) else None


def _joined_weights(signs: Signs) -> Iterator[Sized]:
    """Many weights as one tensor, whole or a rank's share."""
    frame = signs.frame or (WEIGHT if _SHARDS.search(signs.text) and _frame_of_weights(signs) else None)
    if frame is None or frame is COPY or (frame is not WEIGHT and frame.component not in FLAT):
        return
    cut = cut_in_text(signs.text)
    open_cut = signs.program == "Megatron-LM" and cut == 1 and not _LAUNCHED.search(signs.text)
    joins = BOTH_KNOWN - (frame.component == "optimizer_states" and not _SHARDS.search(signs.text))
    units = {each.elements: each.words for each in units_of_models(signs.text)}
    units |= {
        each.elements: f"{each.words}, cut over {cut} ranks,"
        for each in units_of_models(signs.text, cut)
        if cut > 1
    }
    if frame.path == "buckets":
        counted = (int(each) for each in _OF_RANK.findall(signs.text))
        units |= dict.fromkeys(counted, "the parameters of a rank")
    for elements, words in units.items():
        for ranks in ranks_in_text(signs.text):
            part, share = -(-elements // ranks), f", one of {ranks} ranks' share" if ranks > 1 else ""
            for width, dtype in WIDTHS:
                yield Sized(
                    frame.component, frame.path, (part,), width, dtype,
                    f"{words} as one{share}: {part:,} × {width} bytes in {dtype} ({frame.words})", joins, sure=not open_cut,
                )  # fmt: skip


_OF_RANK = re.compile(
    r"number of parameters on \(tensor, pipeline\) model parallel rank \(\d+, \d+\): (\d{4,13})\b"
)
"""megatron/training/training.py, get_model."""
_BY_ROWS = re.compile(r"(?i:fsdp)|fully_shard|torchtitan|data_parallel_shard")
"""Words of what gives each rank rows of a weight."""
_SHARDS = re.compile(
    r"fsdp|FSDP|deepspeed|zero_|[_-]zero|megatron|distributed[_-]optimizer|data_parallel_shard"
)
"""Words of what keeps or gathers many weights as one."""
_BUCKET = re.compile(
    r"\b(?:reduce|allgather|prefetch)_bucket_size[\"']?\s{0,3}[:=]?\s{0,3}"
    r"(\d{1,12}(?:\.\d{1,3})?(?:e\+?\d{1,2})?)\b"
)
_OF_DEEPSPEED = re.compile(
    r"/deepspeed/runtime/|\bdeepspeed --|--deepspeed\b|zero_optimization|deepspeed_config"
)
USUAL_BUCKET = 500_000_000
"""Elements of a bucket where none is said (deepspeed/runtime/zero/config.py, reduce_bucket_size)."""


def _reduced_buckets(signs: Signs) -> Iterator[Sized]:
    """A buffer of many gradients or weights, of the elements that a text says or DeepSpeed takes."""
    frame = signs.frame or (REDUCED if _OF_DEEPSPEED.search(signs.text) and not signs.code else None)
    if frame is None or frame.component not in ("gradients", "unsharded_parameters"):
        return
    said = dict.fromkeys(int(float(each)) for each in _BUCKET.findall(signs.text))
    usual = (USUAL_BUCKET,) if frame is REDUCED and _OF_DEEPSPEED.search(signs.text) else ()
    for elements, (width, dtype) in itertools.product(said or usual, WIDTHS):
        yield Sized(
            frame.component, frame.path, (elements,), width, dtype,
            f"a bucket of {elements:,} elements × {width} bytes in {dtype} ({frame.words})",
        )  # fmt: skip


_OF_SEQUENCES = re.compile(r"sequence[_-]parallel(?![_-]?size)")
"""What cuts the tokens of what no rank cuts otherwise."""
USUAL_TOKENS = tuple(2**power for power in range(10, 18))
"""Tokens that micro-batches usually have, where a text says none."""


def _layer_activations(signs: Signs, axes: Axes) -> Iterator[Sized]:
    """What a layer makes of the tokens that a text names, as a tensor or its gradient; less likely of one
    sequence where several are said to be a micro-batch, and where something else is said to have asked.
    """
    frame = signs.frame
    if frame is not None and frame.component not in ("saved_activations", "temporaries"):
        return
    if frame is not None and frame.path in ("sampler", "prompt_logprobs", "optimizer/step"):
        return
    unsaid = not axes.tokens and signs.program not in SERVERS
    told = (
        frame
        if frame is not None and frame.component == "saved_activations" and frame is not SCORES
        else LAYER
    )
    likely_frames = (None, BACKWARD, told, *(() if writes_scores(signs.code) else (SCORES,)))
    rank = BOTH_KNOWN if frame in likely_frames else BOTH_KNOWN - 1 - (unsaid and frame is SCORES)
    widths = WIDTHS[:1] if raises(signs.code) else WIDTHS[1:] if _stays_in_16_bits(signs) else WIDTHS
    its = ", or its gradient," if frame in (None, BACKWARD) and signs.program not in SERVERS else ""
    found: dict[tuple[str, int, int], Sized] = {}
    for of_token, count, unit, likely in _made_of_units(signs, axes):
        product = " × ".join(f"{axis:,}" for axis in (count, *of_token.axes))
        for width, dtype in reversed(widths):
            sure = unit != "tokens" or width != 4 or bool(axes.batches or raises(signs.code))
            either = "" if sure else f", {HALVES}"
            twin = ""
            if unsaid and unit == "tokens":
                sure = False
                if width == 2 and len(widths) > 1 and count % 2 == 0:
                    twin = f"{EITHER}[{', '.join(map(str, (count // 2, *of_token.axes)))}] fp32"
                    either = f", or as many bytes in fp32 of {count // 2:,}"
            made = Sized(
                told.component, told.path, (count, *of_token.axes), width, dtype,
                f"{dtype} {of_token.words}{its} of {count:,} {unit}: {product} × {width} bytes{either}", rank - (not likely), sure, twin,
            )  # fmt: skip
            key = of_token.words, made.size, 0 if unsaid else made.width
            found[key] = found.get(key, made) if width == 4 else made
    yield from found.values()


def _made_of_units(signs: Signs, axes: Axes) -> Iterator[tuple[Shape, int, str, bool]]:
    """What is made of one unit, how many units there are, what they are, and whether a text says so."""
    cut = cut_in_text(signs.text)
    whole = widths_of_models(signs.text, fused=signs.program in (*SERVERS, "Megatron-LM"))
    likely = axes.likely_counts
    counts = {count: count in likely for count in sorted(axes.counts, reverse=True)}
    if not counts and signs.program not in SERVERS:
        counts = dict.fromkeys(reversed(USUAL_TOKENS), True)
    spread = cut > 1 and (signs.program == "Megatron-LM" or _OF_SEQUENCES.search(signs.text))
    for of_token in _of_rank(whole, cut):
        for count, said in counts.items():
            yield (
                of_token,
                count + of_token.padding * max(1, count // max(axes.lengths or (count,))),
                "tokens",
                said,
            )
            if spread and count % cut == 0:
                yield of_token, count // cut, "tokens", said
    for of_token, count in itertools.product(widths_of_towers(signs.text), patches_in_text(signs.text)):
        yield of_token, count, "patches", True
    positions = {places * batch for _, places in fixed_lengths(signs.text) for batch in (1, *axes.batches)}
    for of_token, count in itertools.product(_of_rank(whole, cut), sorted(positions)):
        yield of_token, count, "positions", True


_CONVOLVES = re.compile(
    r"\b(?:conv(?:_transpose)?\dd|_conv_forward|(?:batch|group|instance)_norm|(?:leaky_)?relu|silu"
    r"|interpolate|(?:max|avg)_pool\dd|cat)_?\("
)
_PICTURES = re.compile(
    r"\b(?:torch\.Size\(|shape[\"']?\)?\s{0,3}[:=(]{0,2}\s{0,3}(?:torch\.Size\()?|randn?\(|zeros\(|ones\()"
    r"[\[(]{0,2}(\d{1,5}),\s?([134]),\s?(\d{2,5}),\s?(\d{2,5})\b"
)
"""Pictures, their channels and sides, as a tensor's shape is printed or written."""
_CHANNELS = re.compile(r"(?i:conv)\w{0,20}\(\s{0,3}(\d{1,4}),\s{0,3}(\d{1,4})\b")
MOST_MAPS = 64
MAP = Frame("saved_activations", "features", "a feature map")


def _feature_maps(signs: Signs) -> Iterator[Sized]:
    """What convolutions make of pictures whose shape a text prints, of channels that it names, at their own
    size and halved.
    """
    if signs.frame is not None or not _CONVOLVES.search(signs.code):
        return
    named = itertools.islice(_CHANNELS.finditer(signs.text), MOST_MAPS)
    channels = dict.fromkeys(int(each) for found in named for each in found.groups())
    pictures = dict.fromkeys(
        found.groups() for found in itertools.islice(_PICTURES.finditer(signs.text), MOST_MAPS)
    )
    widths = WIDTHS if IN_16_BITS.search(signs.text) else WIDTHS[:1]
    for batch, _, height, width in pictures:
        for count, halvings, (size, dtype) in itertools.product(channels, range(6), widths):
            axes = (int(batch), count, int(height) >> halvings, int(width) >> halvings)
            words = f"{dtype} {MAP.words[2:]}: {' × '.join(f'{axis:,}' for axis in axes)} × {size} bytes"
            yield Sized(MAP.component, MAP.path, axes, size, dtype, words)


def _stays_in_16_bits(signs: Signs) -> bool:
    """Whether a layer makes nothing wider but where its code says so: a server's, and Megatron-LM's."""
    megatron = signs.program == "Megatron-LM" and IN_16_BITS.search(signs.text)
    return bool(signs.program in SERVERS or megatron) and not RAISED.search(signs.code)


def _of_rank(shapes: tuple[Shape, ...], ranks: int) -> Iterator[Shape]:
    """Each as one of the ranks makes it: its share where it is cut, else whole."""
    for shape in shapes:
        share = shape.share(ranks) if ranks > 1 else None
        yield shape if share is None else Shape(share, f"{shape.words}, one of {ranks} ranks' share,")


_MADE_AHEAD = re.compile(r"(?:key|value)_cache\s{0,3}=(?!=)\s{0,3}torch\.(?:zeros|empty)\(")
"""A line that makes keys or values alone, for all tokens that there will be (transformers v4.48.0,
cache_utils.py, StaticCache).
"""


def _server_caches(signs: Signs, axes: Axes) -> Iterator[Sized]:
    """Keys or values of one layer, or both, of the tokens for which a text says that there is room; a pool of
    pages has one more.
    """
    frame = signs.frame or (CACHE if signs.program in SERVERS and not signs.code else None)
    if frame is None or frame.component != "kv_cache":
        return
    said = tuple(dict.fromkeys(int(each.replace(",", "")) for each in _CACHED.findall(signs.text)))
    page = int(found[1]) if (found := _CACHED_PAGE.search(signs.text)) else 1
    pages = page if signs.program == "SGLang" else 0
    cut, alone = cut_in_text(signs.text), _MADE_AHEAD.search(signs.code) is not None
    width, dtype = (1, "fp8") if _CACHED_IN_8_BITS.search(signs.text) else WIDTHS[1]
    for shape in caches_of_models(signs.text):
        axes_of_token = shape.share(cut) or shape.axes
        for count in dict.fromkeys((*(each + pages for each in said), *(() if said else axes.counts))):
            for both in ((), (2,)) if len(shape.axes) > 1 and not alone else ((),):
                made = (*both, count, *axes_of_token)
                product = " × ".join(f"{axis:,}" for axis in made)
                words = shape.words.replace(", or", " and") if both else shape.words
                yield Sized(
                    frame.component, frame.path, made, width, dtype,
                    f"{dtype} {words} for {count:,} tokens: {product} × {width} bytes",
                )  # fmt: skip
