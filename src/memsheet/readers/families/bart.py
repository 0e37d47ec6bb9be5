"""BART, mBART and Pegasus: an encoder and a decoder with tables of positions, in the classes that released
models are of.
"""

from __future__ import annotations

from memsheet.frozen import NamedTuple
from memsheet.plan.model import (
    Arrangement,
    Block,
    CrossAttention,
    Embeddings,
    Head,
    ModelSpec,
    Norm,
    Role,
    Stack,
    Weight,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter, class_label_count, model_class_name
from memsheet.readers.parts import (
    embedding_table,
    layer_norm,
    linear_weights,
    plain_mlp,
    run_length,
    separate_qkv_attention,
    vocabulary_head,
)
from memsheet.readers.vision import even_heads

_ROLES = ("encoder", "decoder")


class _Kind(NamedTuple):
    """Where the three differ."""

    prefix: str
    post: bool  # norms behind each branch
    offset: int  # rows of a table of positions that stand before the first
    norm_embeddings: bool
    norm_last: bool
    tasks: tuple[str, ...]


_CLASSIFIES = ("ForSequenceClassification", "ForQuestionAnswering")
_KINDS = {
    "bart": _Kind("Bart", post=True, offset=2, norm_embeddings=True, norm_last=False, tasks=_CLASSIFIES),
    "mbart": _Kind("MBart", post=False, offset=2, norm_embeddings=True, norm_last=True, tasks=_CLASSIFIES),
    "pegasus": _Kind("Pegasus", post=False, offset=0, norm_embeddings=False, norm_last=True, tasks=()),
}


def read(config: Fields) -> ModelSpec:
    """Defaults: BartConfig, MBartConfig and PegasusConfig, which agree on all sizes."""
    kind = config.text("model_type", default="bart", choices=tuple(_KINDS))
    known = _KINDS[kind]
    names = [known.prefix + task for task in ("ForConditionalGeneration", "Model", *known.tasks)]
    task = model_class_name(config, names, names[0]).removeprefix(known.prefix)
    base = "" if task == "Model" else "model."
    hidden = config.count("d_model", "hidden_size", default=1024)
    vocab = config.count("vocab_size", default=50265)
    tied = config.flag("tie_word_embeddings", default=True)
    return ModelSpec(
        name="",
        model_type=kind,
        hidden=hidden,
        vocab=vocab,
        embeddings=_bart_embeddings(config, known, base, hidden, vocab, tied=tied),
        stacks=tuple(_bart_stack(config, kind, role, base, hidden) for role in _ROLES),
        head=_bart_head(config, task, hidden, vocab, tied=tied),
        max_positions=config.count("max_position_embeddings", default=1024),
        extras=_logits_bias(vocab) if task == "ForConditionalGeneration" else (),
    )


def _logits_bias(vocab: int) -> tuple[Weight, ...]:
    return (bare_parameter("final_logits_bias", 1, vocab, role=Role.BUFFER),)


def _bart_embeddings(
    config: Fields, known: _Kind, base: str, hidden: int, vocab: int, *, tied: bool
) -> Embeddings:
    """One table of words that both stacks look into, or where nothing is tied one more for each; a table of
    positions and perhaps a norm for each.
    """
    rows = config.count("max_position_embeddings", default=1024) + known.offset
    tables = [embedding_table(f"{base}shared", vocab, hidden, vocabulary=True)]
    for role in _ROLES:
        own = embedding_table(f"{base}{role}.embed_tokens", vocab, hidden, vocabulary=True)
        tables += [*(() if tied else (own,)), embedding_table(f"{base}{role}.embed_positions", rows, hidden)]
    norms: tuple[Norm, ...] = ()
    if known.norm_embeddings:
        norms = tuple(layer_norm(f"{base}{role}.layernorm_embedding", hidden) for role in _ROLES)
    return Embeddings(weights=tuple(tables), norms=norms, dropout=True)


def _bart_stack(config: Fields, kind: str, role: str, base: str, hidden: int) -> Stack:
    return Stack(
        path=f"{base}{role}.layers",
        hidden=hidden,
        role=role,
        runs=run_length(
            [_bart_block(config, kind, role, hidden)] * config.layers(f"{role}_layers", default=12)
        ),
        final_norms=(layer_norm("layer_norm", hidden),) if _KINDS[kind].norm_last else (),
        final_path=f"{base}{role}",
    )


def _bart_block(config: Fields, kind: str, role: str, hidden: int) -> Block:
    decodes = role == "decoder"
    heads = even_heads(config, hidden, f"{role}_attention_heads", default=16, width="d_model")
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    paths = ("self_attn", "encoder_attn") if decodes else ("self_attn",)
    own, *others = (
        separate_qkv_attention(
            path, hidden, heads, heads, hidden // heads, qkv_bias=True, out_bias=True, rotary_dim=0,
            causal=decodes, names=names,
        )
        for path in paths
    )  # fmt: skip
    cross = tuple(
        CrossAttention(
            path=other.path,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            memory_hidden=hidden,
            weights=other.weights,
        )
        for other in others
    )
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.POST if _KINDS[kind].post else Arrangement.PRE,
        mixers=(own, *cross),
        feed_forward=plain_mlp(
            "",
            hidden,
            config.count(f"{role}_ffn_dim", default=4096),
            config.text("activation_function", default="gelu"),
            bias=True,
            names=("fc1", "fc2"),
        ),
        norms=tuple(layer_norm(f"{path}_layer_norm", hidden) for path in (*paths, "final")),
    )


def _bart_head(config: Fields, task: str, hidden: int, vocab: int, *, tied: bool) -> Head:
    match task:
        case "Model":
            return Head(kind="none", width=hidden)
        case "ForConditionalGeneration":
            matrix = () if tied else vocabulary_head("lm_head", vocab, hidden)
            return Head(kind="sequence_to_sequence", width=vocab, tied=tied, weights=matrix)
        case "ForQuestionAnswering":
            count, path = class_label_count(config), "qa_outputs"
            return Head(
                kind="classification", width=count, weights=linear_weights(path, count, hidden, bias=True)
            )
        case _:
            count, path = _class_count(config), "classification_head"
            dense = linear_weights(f"{path}.dense", hidden, hidden, bias=True)
            out = linear_weights(f"{path}.out_proj", count, hidden, bias=True)
            return Head(kind="classification", width=count, weights=(*dense, *out))


def _class_count(config: Fields) -> int:
    """Three where BART's config says nothing (configuration_bart.py), two in mBART's."""
    asked = config.raw("id2label") is not None or config.raw("num_labels") is not None
    return 3 if not asked and config.data.get("model_type") == "bart" else class_label_count(config)
