"""T5 and mT5: an encoder and a decoder with relative position biases, in every class of their modeling
files.
"""

from __future__ import annotations

from memsheet.frozen import NamedTuple, dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    CrossAttention,
    Dense,
    Embeddings,
    Head,
    ModelSpec,
    Role,
    Stack,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import class_label_count, model_class_name
from memsheet.readers.parts import (
    embedding_table,
    gated_mlp,
    linear_weights,
    plain_mlp,
    repeating_layer_runs,
    rms_norm,
    separate_qkv_attention,
)

# Which parts a class has, in order of execution, and where they stand; named without the leading T5 or MT5.
_PLACES: dict[str, tuple[tuple[str, ...], str]] = {
    "ForConditionalGeneration": (("encoder", "decoder"), ""),
    "Model": (("encoder", "decoder"), ""),
    "EncoderModel": (("encoder",), ""),
    "ForSequenceClassification": (("encoder", "decoder"), "transformer."),
    "ForTokenClassification": (("encoder",), "transformer."),
    "ForQuestionAnswering": (("encoder", "decoder"), ""),
}


class _Defaults(NamedTuple):
    """Where T5Config and MT5Config differ."""

    prefix: str
    vocab: int
    d_ff: int
    layers: int
    heads: int
    activation: str


_DEFAULTS = {
    "t5": _Defaults("T5", 32128, 2048, 6, 8, "relu"),
    "mt5": _Defaults("MT5", 250112, 1024, 8, 6, "gated-gelu"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    kind: str
    hidden: int
    head_dim: int
    heads: int
    buckets: int
    feed_forward: Dense


def read(config: Fields) -> ModelSpec:
    """Input embeddings and output matrix are always one tensor: transformers ties them whatever
    ``tie_word_embeddings`` says.
    """
    kind = config.text("model_type", default="t5", choices=tuple(_DEFAULTS))
    known = _DEFAULTS[kind]
    names = [known.prefix + name for name in _PLACES]
    name = model_class_name(config, names, names[0]).removeprefix(known.prefix)
    roles, base = _PLACES[name]
    sizes = _read_t5_sizes(config, kind, known)
    vocab = config.count("vocab_size", default=known.vocab)
    return ModelSpec(
        name="",
        model_type=kind,
        hidden=sizes.hidden,
        vocab=vocab,
        head=_t5_task_head(config, name, sizes.hidden, vocab),
        embeddings=Embeddings(
            weights=(embedding_table(f"{base}shared", vocab, sizes.hidden, vocabulary=True),), dropout=True
        ),
        stacks=tuple(_t5_stack(config, known, sizes, role, base) for role in roles),
    )


def _read_t5_sizes(config: Fields, kind: str, known: _Defaults) -> _Sizes:
    hidden = config.count("hidden_size", "d_model", default=512)
    return _Sizes(
        kind=kind,
        hidden=hidden,
        head_dim=config.count("head_dim", "d_kv", default=64),
        heads=config.count("num_attention_heads", "num_heads", default=known.heads),
        buckets=config.count("relative_attention_num_buckets", default=32),
        feed_forward=_feed_forward(
            hidden, config.count("d_ff", default=known.d_ff), _t5_activation_name(config, known)
        ),
    )


def _t5_activation_name(config: Fields, known: _Defaults) -> str:
    """``relu`` or ``gated-silu``: an activation, perhaps with a gate before it."""
    given = config.text("feed_forward_proj", default=known.activation)
    if "-" in given and (given.count("-") > 1 or not given.startswith("gated-")):
        config.wrong("feed_forward_proj", given, "is neither an activation nor gated- and one")
    return given


def _feed_forward(hidden: int, intermediate: int, activation: str) -> Dense:
    path = "DenseReluDense"
    if not activation.startswith("gated-"):
        return plain_mlp(path, hidden, intermediate, activation, bias=False, names=("wi", "wo"))
    name = "gelu_new" if activation == "gated-gelu" else activation.removeprefix("gated-")
    return gated_mlp(path, hidden, intermediate, name, names=("wi_0", "wi_1", "wo"))


def _t5_stack(config: Fields, known: _Defaults, sizes: _Sizes, role: str, base: str) -> Stack:
    layers = config.layers("num_layers", "num_hidden_layers", default=known.layers)
    if role == "decoder":
        layers = config.layers("num_decoder_layers", default=layers)
    return Stack(
        path=f"{base}{role}.block",
        hidden=sizes.hidden,
        role=role,
        runs=repeating_layer_runs(
            [layer == 0 for layer in range(layers)],
            lambda first: _t5_block(sizes, first=first, decoder=role == "decoder"),
        ),
        final_norms=(rms_norm("final_layer_norm", sizes.hidden),),
        final_path=f"{base}{role}",
    )


def _t5_block(sizes: _Sizes, *, first: bool, decoder: bool) -> Block:
    """Two or three sublayers, each with its norm. The first block holds the table of position biases that all
    of them add.
    """
    last = 2 if decoder else 1
    mixers = (
        _self_attention(sizes, first=first, causal=decoder),
        *((_cross_attention(sizes),) if decoder else ()),
    )
    return Block(
        kind=sizes.kind,
        hidden=sizes.hidden,
        arrangement=Arrangement.PRE,
        mixers=mixers,
        feed_forward=_nest_mlp_under(f"layer.{last}", sizes.feed_forward),
        norms=tuple(rms_norm(f"layer.{layer}.layer_norm", sizes.hidden) for layer in range(last + 1)),
    )


def _nest_mlp_under(path: str, dense: Dense) -> Dense:
    weights = tuple(replace(weight, path=f"{path}.{weight.path}") for weight in dense.weights)
    return replace(dense, path=f"{path}.{dense.path}", weights=weights)


def _self_attention(sizes: _Sizes, *, first: bool, causal: bool) -> Attention:
    path = "layer.0.SelfAttention"
    mixer = separate_qkv_attention(
        path,
        sizes.hidden,
        sizes.heads,
        sizes.heads,
        sizes.head_dim,
        rotary_dim=0,
        causal=causal,
        names=("q", "k", "v", "o"),
    )
    bias = Weight(
        path=f"{path}.relative_attention_bias.weight",
        shape=(sizes.buckets, sizes.heads),
        role=Role.EMBEDDING,
        cut=1,
        units=sizes.heads,
    )
    return replace(mixer, position_bias=True, weights=(*mixer.weights, bias) if first else mixer.weights)


def _cross_attention(sizes: _Sizes) -> CrossAttention:
    path = "layer.1.EncDecAttention"
    weights = separate_qkv_attention(
        path, sizes.hidden, sizes.heads, sizes.heads, sizes.head_dim, names=("q", "k", "v", "o")
    ).weights
    return CrossAttention(
        path=path,
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=sizes.head_dim,
        memory_hidden=sizes.hidden,
        weights=weights,
    )


def _t5_task_head(config: Fields, name: str, hidden: int, vocab: int) -> Head:
    match name:
        case "ForConditionalGeneration":
            # T5 scales the decoder's output unless the config says, as version 1.1 does, that nothing is tied
            scaled = config.text("model_type", default="t5") == "t5" and config.flag(
                "tie_word_embeddings", default=True
            )
            return Head(kind="sequence_to_sequence", width=vocab, tied=True, scaled=scaled)
        case "ForSequenceClassification":
            dense = linear_weights("classification_head.dense", hidden, hidden, bias=True)
            count = class_label_count(config)
            out = linear_weights("classification_head.out_proj", count, hidden, bias=True)
            return Head(kind="classification", width=count, weights=(*dense, *out))
        case "ForTokenClassification" | "ForQuestionAnswering":
            path = "classifier" if name == "ForTokenClassification" else "qa_outputs"
            count = class_label_count(config)
            return Head(
                kind="classification", width=count, weights=linear_weights(path, count, hidden, bias=True)
            )
        case _:
            return Head(kind="none", width=hidden)
