"""DistilBERT, ELECTRA and DeBERTa-v2: post-norm encoders that differ from BERT in a few modules, in every
class of their modeling files.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, Block, Embeddings, Head, ModelSpec, Norm, Role, Stack, Weight
from memsheet.readers.families.encoder import (
    bert_encoder_block,
    bert_feed_forward,
    linear_classification_head,
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

_TASKS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
_PREFIX = {"distilbert": "DistilBert", "electra": "Electra", "deberta-v2": "DebertaV2"}
_OF_ELECTRA = ("PreTraining", "CausalLM")


def read(config: Fields) -> ModelSpec:
    kind = config.text("model_type", default="distilbert", choices=tuple(_PREFIX))
    prefix = _PREFIX[kind]
    tasks = (*_TASKS, *(_OF_ELECTRA if kind == "electra" else ()))
    names = (*(f"{prefix}For{task}" for task in tasks), f"{prefix}Model")
    name = model_class_name(config, names, names[0]).removeprefix(prefix).removeprefix("For")
    match kind:
        case "electra":
            return _electra_spec(config, name)
        case "deberta-v2":
            return _deberta_spec(config, name)
        case _:
            return _distilbert_spec(config, name)


def _word_bias(path: str, vocab: int) -> Weight:
    return replace(bare_parameter(path, vocab, role=Role.BIAS), cut=0, padded=True)


def _label_head(config: Fields, task: str, hidden: int, *before: Weight) -> Head:
    """A linear layer to labels: ``before`` stands in front of it."""
    path = "qa_outputs" if task == "QuestionAnswering" else "classifier"
    head = linear_classification_head(
        path, 1 if task == "MultipleChoice" else class_label_count(config), hidden
    )
    return replace(head, weights=(*before, *head.weights))


def _distilbert_spec(config: Fields, task: str) -> ModelSpec:
    """Defaults: DistilBertConfig. No token types and no pooler."""
    base = "" if task == "Model" else "distilbert."
    hidden = config.count("dim", "hidden_size", default=768)
    vocab = config.count("vocab_size", default=30522)
    positions = config.count("max_position_embeddings", default=512)
    path = f"{base}embeddings"
    return ModelSpec(
        name="",
        model_type="distilbert",
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(
                embedding_table(f"{path}.word_embeddings", vocab, hidden, vocabulary=True),
                embedding_table(f"{path}.position_embeddings", positions, hidden),
            ),
            norms=(layer_norm(f"{path}.LayerNorm", hidden),),
            dropout=True,
        ),
        stacks=(
            Stack(
                path=f"{base}transformer.layer",
                hidden=hidden,
                role="encoder",
                runs=run_length(
                    [_distilbert_block(config, hidden)]
                    * config.layers("n_layers", "num_hidden_layers", default=6)
                ),
            ),
        ),
        head=_distilbert_head(config, task, hidden, vocab),
        max_positions=positions,
    )


def _distilbert_block(config: Fields, hidden: int) -> Block:
    heads = even_heads(config, hidden, "n_heads", "num_attention_heads", default=12, width="dim")
    mixer = separate_qkv_attention(
        "attention", hidden, heads, heads, hidden // heads, qkv_bias=True, out_bias=True, rotary_dim=0,
        causal=False, names=("q_lin", "k_lin", "v_lin", "out_lin"),
    )  # fmt: skip
    inner, activation = config.count("hidden_dim", default=3072), config.text("activation", default="gelu")
    return Block(
        kind="distilbert",
        hidden=hidden,
        arrangement=Arrangement.POST,
        mixers=(mixer,),
        feed_forward=plain_mlp("ffn", hidden, inner, activation, bias=True, names=("lin1", "lin2")),
        norms=(layer_norm("sa_layer_norm", hidden), layer_norm("output_layer_norm", hidden)),
    )


def _distilbert_head(config: Fields, task: str, hidden: int, vocab: int) -> Head:
    match task:
        case "Model":
            return Head(kind="none", width=hidden)
        case "MaskedLM":
            tied = config.flag("tie_word_embeddings", default=True)
            matrix = () if tied else vocabulary_head("vocab_projector", vocab, hidden)
            before = linear_weights("vocab_transform", hidden, hidden, bias=True)
            norm = layer_norm("vocab_layer_norm", hidden).weights
            bias = _word_bias("vocab_projector.bias", vocab)
            return Head(kind="masked_lm", width=vocab, tied=tied, weights=(*before, *norm, *matrix, bias))
        case "SequenceClassification" | "MultipleChoice":
            return _label_head(
                config, task, hidden, *linear_weights("pre_classifier", hidden, hidden, bias=True)
            )
        case _:
            return _label_head(config, task, hidden)


def _electra_spec(config: Fields, task: str) -> ModelSpec:
    """Defaults: ElectraConfig. BERT's layers over tables of a width of their own."""
    base = "" if task == "Model" else "electra."
    hidden, width = config.count("hidden_size", default=256), config.count("embedding_size", default=128)
    vocab = config.count("vocab_size", default=30522)
    positions = config.count("max_position_embeddings", default=512)
    path, types = f"{base}embeddings", config.count("type_vocab_size", default=2)
    sized = {"num_attention_heads": 4, "intermediate_size": 1024, **config.data}
    block = bert_encoder_block(Fields(sized, config.where, config.problems), "electra", hidden)
    projection = (
        linear_weights(f"{base}embeddings_project", hidden, width, bias=True) if width != hidden else ()
    )
    return ModelSpec(
        name="",
        model_type="electra",
        hidden=hidden,
        vocab=vocab,
        embeddings=Embeddings(
            weights=(
                embedding_table(f"{path}.word_embeddings", vocab, width, vocabulary=True),
                embedding_table(f"{path}.position_embeddings", positions, width),
                embedding_table(f"{path}.token_type_embeddings", types, width),
            ),
            norms=(layer_norm(f"{path}.LayerNorm", width),),
            dropout=True,
        ),
        stacks=(
            Stack(
                path=f"{base}encoder.layer",
                hidden=hidden,
                role="encoder",
                runs=run_length([block] * config.layers(default=12)),
            ),
        ),
        head=_electra_head(config, task, hidden, width, vocab),
        max_positions=positions,
        extras=projection,
    )


def _electra_head(config: Fields, task: str, hidden: int, width: int, vocab: int) -> Head:
    match task:
        case "Model":
            return Head(kind="none", width=hidden)
        case "MaskedLM" | "CausalLM":
            tied = config.flag("tie_word_embeddings", default=True)
            path = "generator_lm_head"
            weights = (
                *layer_norm("generator_predictions.LayerNorm", width).weights,
                *linear_weights("generator_predictions.dense", width, hidden, bias=True),
                *(() if tied else vocabulary_head(path, vocab, width)),
                _word_bias(f"{path}.bias", vocab),
            )
            kind = "masked_lm" if task == "MaskedLM" else "causal_lm"
            return Head(kind=kind, width=vocab, tied=tied, weights=weights)
        case "PreTraining":
            path = "discriminator_predictions"
            out = linear_classification_head(f"{path}.dense_prediction", 1, hidden)
            dense = linear_weights(f"{path}.dense", hidden, hidden, bias=True)
            return replace(out, weights=(*dense, *out.weights))
        case "SequenceClassification":
            out = linear_classification_head("classifier.out_proj", class_label_count(config), hidden)
            dense = linear_weights("classifier.dense", hidden, hidden, bias=True)
            return replace(out, weights=(*dense, *out.weights))
        case "MultipleChoice":
            return _label_head(config, task, hidden, *_electra_summary_weights(config, hidden))
        case _:
            return _label_head(config, task, hidden)


def _electra_summary_weights(config: Fields, hidden: int) -> tuple[Weight, ...]:
    if not config.flag("summary_use_proj", default=True):
        return ()
    labels = config.flag("summary_proj_to_labels", default=False)
    count = class_label_count(config) if labels else 0
    return linear_weights("sequence_summary.summary", count or hidden, hidden, bias=True)


def _deberta_spec(config: Fields, task: str) -> ModelSpec:
    """Defaults: DebertaV2Config. Relative positions from one table that every layer projects again."""
    base = "" if task == "Model" else "deberta."
    hidden = config.count("hidden_size", default=1536)
    vocab = config.count("vocab_size", default=128100)
    positions = config.count("max_position_embeddings", default=512)
    relative, layer = _relative_positions(config), _deberta_block(config, hidden)
    return ModelSpec(
        name="",
        model_type="deberta-v2",
        hidden=hidden,
        vocab=vocab,
        embeddings=_deberta_embeddings(config, f"{base}embeddings", hidden, vocab, positions),
        stacks=(
            Stack(
                path=f"{base}encoder.layer",
                hidden=hidden,
                role="encoder",
                runs=run_length([layer] * config.layers(default=24)),
            ),
        ),
        head=_deberta_head(config, task, hidden, vocab),
        max_positions=positions,
        extras=(
            *((embedding_table(f"{base}encoder.rel_embeddings", 2 * relative, hidden),) if relative else ()),
            *_deberta_encoder_extras(config, f"{base}encoder", hidden),
        ),
    )


def _relative_positions(config: Fields) -> int:
    """Distances that the table of relative positions tells apart on each side; none where there is none."""
    if not config.flag("relative_attention", default=False):
        return 0
    buckets = config.count("position_buckets", default=-1, low=-1)
    most = config.count("max_relative_positions", default=-1, low=-1)
    return (
        buckets if buckets > 0 else most if most > 0 else config.count("max_position_embeddings", default=512)
    )


def _deberta_encoder_extras(config: Fields, path: str, hidden: int) -> tuple[Weight, ...]:
    """The norm of the table of relative positions, and a convolution beside the first layer."""
    norms = [name.strip() for name in config.text("norm_rel_ebd", default="none").lower().split("|")]
    kernel = config.count("conv_kernel_size", default=0, low=0)
    groups = config.count("conv_groups", default=1)
    config.divides(groups, "hidden_size", hidden, "conv_groups cut it")
    convolution = (
        bare_parameter(f"{path}.conv.conv.weight", hidden, hidden // groups, kernel, role=Role.OTHER),
        bare_parameter(f"{path}.conv.conv.bias", hidden, role=Role.BIAS),
        *layer_norm(f"{path}.conv.LayerNorm", hidden).weights,
    )
    scale: Norm = layer_norm(f"{path}.LayerNorm", hidden)
    return (*(scale.weights if "layer_norm" in norms else ()), *(convolution if kernel else ()))


def _deberta_embeddings(config: Fields, path: str, hidden: int, vocab: int, positions: int) -> Embeddings:
    width = config.count("embedding_size", default=hidden)
    types = config.count("type_vocab_size", default=0, low=0)
    placed = config.flag("position_biased_input", default=True)
    return Embeddings(
        weights=(
            embedding_table(f"{path}.word_embeddings", vocab, width, vocabulary=True),
            *((embedding_table(f"{path}.position_embeddings", positions, width),) if placed else ()),
            *((embedding_table(f"{path}.token_type_embeddings", types, width),) if types else ()),
            *(linear_weights(f"{path}.embed_proj", hidden, width) if width != hidden else ()),
        ),
        norms=(layer_norm(f"{path}.LayerNorm", hidden),),
        dropout=True,
    )


def _deberta_block(config: Fields, hidden: int) -> Block:
    heads = even_heads(config, hidden, "num_attention_heads", default=24)
    head_dim = hidden // heads
    if (
        config.count("attention_head_size", default=head_dim) != head_dim
    ):  # its output layer takes hidden_size
        config.wrong(
            "attention_head_size", config.raw("attention_head_size"), f"is not {hidden} over {heads}"
        )
    mixer = separate_qkv_attention(
        "attention", hidden, heads, heads, head_dim, qkv_bias=True, out_bias=True, rotary_dim=0, causal=False,
        names=("self.query_proj", "self.key_proj", "self.value_proj", "output.dense"),
    )  # fmt: skip
    sized = Fields({"intermediate_size": 6144, **config.data}, config.where, config.problems)
    return Block(
        kind="deberta-v2",
        hidden=hidden,
        arrangement=Arrangement.POST,
        mixers=(
            replace(
                mixer,
                position_bias=bool(_relative_positions(config)),
                weights=(*mixer.weights, *_position_projections(config, hidden, heads, head_dim)),
            ),
        ),
        feed_forward=bert_feed_forward(sized, hidden),
        norms=(layer_norm("attention.output.LayerNorm", hidden), layer_norm("output.LayerNorm", hidden)),
    )


def _position_projections(config: Fields, hidden: int, heads: int, head_dim: int) -> tuple[Weight, ...]:
    """A layer's own projections of relative positions, unless it takes those of queries and keys."""
    if not _relative_positions(config) or config.flag("share_att_key", default=False):
        return ()
    given = config.raw("pos_att_type")
    kinds = (
        [k.strip() for k in given.lower().split("|")]
        if isinstance(given, str)
        else config.texts("pos_att_type")
    )
    return tuple(
        weight
        for kind, name in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj"))
        if kind in kinds
        for weight in linear_weights(
            f"attention.self.{name}", heads * head_dim, hidden, bias=True, cut="out", units=heads
        )
    )


def _deberta_head(config: Fields, task: str, hidden: int, vocab: int) -> Head:
    match task:
        case "Model":
            return Head(kind="none", width=hidden)
        case "MaskedLM":
            return _deberta_word_head(config, hidden, vocab)
        case "SequenceClassification" | "MultipleChoice":
            inner = config.count("pooler_hidden_size", default=hidden)
            return _label_head(config, task, hidden, *linear_weights("pooler.dense", inner, inner, bias=True))
        case _:
            return _label_head(config, task, hidden)


def _deberta_word_head(config: Fields, hidden: int, vocab: int) -> Head:
    """The older head, or one without a matrix of its own whatever the config ties (``legacy`` false)."""
    if not config.flag("legacy", default=True):
        path = "lm_predictions.lm_head"
        weights = (
            _word_bias(f"{path}.bias", vocab),
            *linear_weights(f"{path}.dense", hidden, hidden, bias=True),
            *layer_norm(f"{path}.LayerNorm", hidden).weights,
        )
        return Head(kind="masked_lm", width=vocab, tied=True, weights=weights)
    width, path = config.count("embedding_size", default=hidden), "cls.predictions"
    tied = config.flag("tie_word_embeddings", default=True)
    weights = (
        _word_bias(f"{path}.bias", vocab),
        *linear_weights(f"{path}.transform.dense", width, hidden, bias=True),
        *layer_norm(f"{path}.transform.LayerNorm", width).weights,
        *(() if tied else vocabulary_head(f"{path}.decoder", vocab, width, bias=True)),
    )
    return Head(kind="masked_lm", width=vocab, tied=tied, weights=weights)
