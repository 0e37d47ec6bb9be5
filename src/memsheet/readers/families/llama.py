"""Dense decoders built like Llama: pre-norm blocks, rotary positions, grouped attention, a gated or plain feed-forward."""

from __future__ import annotations

from memsheet.readers.fields import Fields
from memsheet.readers.parts import attention, embedding, gated_mlp, rms_norm, run_length, vocabulary_head
from memsheet.spec.model import Arrangement, Block, Embeddings, Head, ModelSpec, Stack


def read(config: Fields) -> ModelSpec:
    hidden = config.count("hidden_size", default=4096)
    vocab = config.count("vocab_size", default=32000)
    heads = config.count("num_attention_heads", default=32)
    kv_heads = config.count("num_key_value_heads", default=heads)
    head_dim = config.count("head_dim", default=hidden // heads)
    config.divides(kv_heads, "num_attention_heads", heads, "each key/value head serves the same number of query heads")
    bias = config.flag("attention_bias", default=False)
    block = Block(
        kind="llama", hidden=hidden, arrangement=Arrangement.PRE,
        mixers=(attention("self_attn", hidden, heads, kv_heads, head_dim, qkv_bias=bias, out_bias=bias),),
        feed_forward=gated_mlp(
            "mlp", hidden, config.count("intermediate_size", default=11008),
            config.text("hidden_act", default="silu"), bias=config.flag("mlp_bias", default=False),
        ),
        norms=(rms_norm("input_layernorm", hidden), rms_norm("post_attention_layernorm", hidden)),
    )  # fmt: skip
    tied = config.flag("tie_word_embeddings", default=False)
    return ModelSpec(
        name="", model_type="llama", hidden=hidden, vocab=vocab,
        embeddings=Embeddings(weights=(embedding("model.embed_tokens", vocab, hidden, vocabulary=True),)),
        stacks=(Stack(
            path="model.layers", hidden=hidden, runs=run_length([block] * config.layers(default=32)),
            final_norms=(rms_norm("norm", hidden),), final_path="model",
        ),),
        head=Head(kind="causal_lm", width=vocab, tied=tied, weights=() if tied else vocabulary_head("lm_head", vocab, hidden)),
        max_positions=config.optional("max_position_embeddings"),
    )  # fmt: skip
