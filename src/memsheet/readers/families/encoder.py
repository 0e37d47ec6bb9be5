"""BERT, RoBERTa and XLM-RoBERTa: post-norm encoders with learned positions, in every class of theirs."""

from __future__ import annotations

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Block,
    CrossAttention,
    Dense,
    Embeddings,
    Head,
    ModelSpec,
    Role,
    Stack,
)
from memsheet.readers.fields import Fields
from memsheet.readers.nested import bare_parameter, class_label_count, model_class_name
from memsheet.readers.parts import (
    embedding_table,
    layer_norm,
    linear_weights,
    run_length,
    separate_qkv_attention,
    vocabulary_head,
)
from memsheet.readers.vision import even_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What one class puts on the encoder. ``head``: a kind of Head, or a name of ``_bert_task_head``
    below.
    """

    head: str
    pooler: bool = False


_TASKS = {
    "BertForMaskedLM": _Task(head="masked_lm"),
    "BertModel": _Task(head="none", pooler=True),
    "BertForPreTraining": _Task(head="pretraining", pooler=True),
    "BertLMHeadModel": _Task(head="causal_lm"),
    "BertForNextSentencePrediction": _Task(head="next_sentence", pooler=True),
    "BertForSequenceClassification": _Task(head="classifier", pooler=True),
    "BertForMultipleChoice": _Task(head="choice", pooler=True),
    "BertForTokenClassification": _Task(head="classifier"),
    "BertForQuestionAnswering": _Task(head="qa_outputs"),
    "RobertaForMaskedLM": _Task(head="masked_lm"),
    "RobertaModel": _Task(head="none", pooler=True),
    "RobertaForCausalLM": _Task(head="causal_lm"),
    "RobertaForSequenceClassification": _Task(head="dense_classifier"),
    "RobertaForMultipleChoice": _Task(head="choice", pooler=True),
    "RobertaForTokenClassification": _Task(head="classifier"),
    "RobertaForQuestionAnswering": _Task(head="qa_outputs"),
}
_VOCABULARY = {"bert": 30522, "roberta": 50265}  # BertConfig, RobertaConfig; the two agree on all other sizes


XLM = "xlm-roberta"
"""RoBERTa's modules under other class names, with a vocabulary of its own (XLMRobertaConfig)."""


def read(config: Fields) -> ModelSpec:
    if config.data.get("model_type") != XLM:
        return _read_bert(config)
    names = config.data.get("architectures")
    own = (
        [name.removeprefix("XLM") if isinstance(name, str) else name for name in names]
        if isinstance(names, list)
        else names
    )
    renamed = {"vocab_size": 30522, **config.data, "model_type": "roberta", "architectures": own}
    return replace(_read_bert(Fields(renamed, config.where, config.problems)), model_type=XLM)


def _read_bert(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="bert", choices=tuple(_VOCABULARY))
    known = [name for name in _TASKS if name.lower().startswith(kind)]
    name = model_class_name(config, known, known[0])
    task = _TASKS[name]
    base = "" if task.head == "none" else f"{kind}."  # the bare encoder is not nested under its name
    hidden = config.count("hidden_size", default=768)
    vocab = config.count("vocab_size", default=_VOCABULARY[kind])
    return ModelSpec(
        name="",
        model_type=kind,
        hidden=hidden,
        vocab=vocab,
        embeddings=_bert_embeddings(config, f"{base}embeddings", hidden, vocab),
        stacks=(
            Stack(
                path=f"{base}encoder.layer",
                hidden=hidden,
                role="encoder",
                runs=run_length([bert_encoder_block(config, kind, hidden)] * config.layers(default=12)),
            ),
        ),
        head=_bert_task_head(config, kind, task.head, hidden, vocab),
        max_positions=_usable_position_count(config, kind),
        extras=linear_weights(f"{base}pooler.dense", hidden, hidden, bias=True) if task.pooler else (),
    )


def _usable_position_count(config: Fields, kind: str) -> int:
    """RoBERTa counts positions from the one after its padding token's, so that many rows of the table are
    never used.
    """
    rows = config.count("max_position_embeddings", default=512)
    return rows if kind == "bert" else max(rows - config.count("pad_token_id", default=1, low=0) - 1, 1)


def _bert_embeddings(config: Fields, path: str, hidden: int, vocab: int) -> Embeddings:
    return Embeddings(
        weights=(
            embedding_table(f"{path}.word_embeddings", vocab, hidden, vocabulary=True),
            embedding_table(
                f"{path}.position_embeddings", config.count("max_position_embeddings", default=512), hidden
            ),
            embedding_table(
                f"{path}.token_type_embeddings", config.count("type_vocab_size", default=2), hidden
            ),
        ),
        norms=(layer_norm(f"{path}.LayerNorm", hidden),),
        dropout=True,
    )


def bert_encoder_block(config: Fields, kind: str, hidden: int) -> Block:
    """With ``add_cross_attention`` a decoder's block: a second attention, to another model's output of the
    same width.
    """
    heads = even_heads(config, hidden, "num_attention_heads", default=12)
    mixer = separate_qkv_attention(
        "attention",
        hidden,
        heads,
        heads,
        hidden // heads,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        causal=config.flag("is_decoder", default=False),
        names=("self.query", "self.key", "self.value", "output.dense"),
    )
    crossing = config.flag("add_cross_attention", default=False)
    norms = [layer_norm("attention.output.LayerNorm", hidden)]
    if crossing:
        norms.append(layer_norm("crossattention.output.LayerNorm", hidden))
    return Block(
        kind=kind,
        hidden=hidden,
        arrangement=Arrangement.POST,
        norms=(*norms, layer_norm("output.LayerNorm", hidden)),
        mixers=(mixer, _bert_cross_attention(hidden, heads)) if crossing else (mixer,),
        feed_forward=bert_feed_forward(config, hidden),
    )


def bert_feed_forward(config: Fields, hidden: int) -> Dense:
    """The two layers are modules of the block itself, so the feed-forward has no path of its own."""
    intermediate = config.count("intermediate_size", default=3072)
    weights = (
        *linear_weights("intermediate.dense", intermediate, hidden, bias=True, cut="out"),
        *linear_weights("output.dense", hidden, intermediate, bias=True, cut="in"),
    )
    return Dense(
        path="",
        intermediate=intermediate,
        activation=config.text("hidden_act", default="gelu"),
        gated=False,
        weights=weights,
    )


def _bert_cross_attention(hidden: int, heads: int) -> CrossAttention:
    names = ("self.query", "self.key", "self.value", "output.dense")
    weights = separate_qkv_attention(
        "crossattention", hidden, heads, heads, hidden // heads, qkv_bias=True, out_bias=True, names=names
    ).weights
    return CrossAttention(
        path="crossattention",
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        memory_hidden=hidden,
        weights=weights,
    )


def _bert_task_head(config: Fields, kind: str, head: str, hidden: int, vocab: int) -> Head:
    match head:
        case "none":
            return Head(kind="none", width=hidden)
        case "masked_lm" | "causal_lm":
            return _bert_vocabulary_head(config, kind, head, hidden, vocab)
        case "pretraining":
            words = _bert_vocabulary_head(config, kind, "masked_lm", hidden, vocab)
            return replace(
                words, weights=(*words.weights, *linear_weights("cls.seq_relationship", 2, hidden, bias=True))
            )
        case "next_sentence":
            return linear_classification_head("cls.seq_relationship", 2, hidden)
        case "choice":
            return linear_classification_head("classifier", 1, hidden)
        case "dense_classifier":
            out = linear_classification_head("classifier.out_proj", class_label_count(config), hidden)
            return replace(
                out, weights=(*linear_weights("classifier.dense", hidden, hidden, bias=True), *out.weights)
            )
        case _:
            return linear_classification_head(head, class_label_count(config), hidden)


def linear_classification_head(path: str, count: int, hidden: int) -> Head:
    return Head(kind="classification", width=count, weights=linear_weights(path, count, hidden, bias=True))


def _bert_vocabulary_head(config: Fields, kind: str, head: str, hidden: int, vocab: int) -> Head:
    """A dense layer, a norm, the output matrix. The bias is a parameter beside the matrix's own, which tying
    makes one.
    """
    tied = config.flag("tie_word_embeddings", default=True)
    path, decoder = (
        ("cls.predictions", "cls.predictions.decoder") if kind == "bert" else ("lm_head", "lm_head.decoder")
    )
    dense, scale = ("transform.dense", "transform.LayerNorm") if kind == "bert" else ("dense", "layer_norm")
    return Head(
        kind=head,
        width=vocab,
        tied=tied,
        weights=(
            replace(bare_parameter(f"{path}.bias", vocab, role=Role.BIAS), cut=0, padded=True),
            *linear_weights(f"{path}.{dense}", hidden, hidden, bias=True),
            *layer_norm(f"{path}.{scale}", hidden).weights,
            *(() if tied else vocabulary_head(decoder, vocab, hidden, bias=True)),
        ),
    )
