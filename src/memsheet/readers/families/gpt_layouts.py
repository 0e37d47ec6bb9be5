"""What the GPT line calls its modules and config keys, and the sizes its configuration classes default to."""

from __future__ import annotations

from memsheet.frozen import NamedTuple, dataclass
from memsheet.plan.model import Arrangement


class Keys(NamedTuple):
    """Config keys, each with the spelling that wins first. ``intermediate`` None: always four times
    hidden.
    """

    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    positions: tuple[str, ...] = ("max_position_embeddings",)
    intermediate: str | None = None


class Sizes(NamedTuple):
    """Defaults; ``intermediate`` None: four times hidden."""

    hidden: int
    vocab: int
    heads: int
    layers: int
    positions: int
    intermediate: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One family. ``qkv``: three projections or one fused; ``bias_key``: the config key that flips the biases
    of linear layers.
    """

    sizes: Sizes
    keys: Keys
    base: str = "transformer"
    layers: str = "h"
    embed: str = "wte"
    learned: str = ""  # the table of learned positions
    position_offset: int = 0
    embed_norm: str = ""
    embed_dropout: bool = True
    final: str = "ln_f"
    norms: tuple[str, ...] = ("ln_1", "ln_2")
    norm_bias: bool = True
    arrangement: Arrangement = Arrangement.PRE
    attention: str = "attn"
    qkv: tuple[str, ...]
    out: str
    mlp: str = "mlp"
    mlp_names: tuple[str, str]
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    head_bias: bool = False
    bias_key: str = ""
    transposed: bool = False
    alibi: bool = False
    activation: str
    activation_key: str = "activation_function"
    tied: bool = True


_QKV = ("q_proj", "k_proj", "v_proj")
_SHORT = Keys(("hidden_size", "n_embd"), ("num_attention_heads", "n_head"), ("num_hidden_layers", "n_layer"),
              ("max_position_embeddings", "n_positions"), "n_inner")  # fmt: skip
_LN = ("input_layernorm", "post_attention_layernorm")
_4H = ("dense_h_to_4h", "dense_4h_to_h")

LAYOUTS: dict[str, Layout] = {
    #                    hidden  vocab  heads layers positions
    "gpt2": Layout(
        sizes=Sizes(768, 50257, 12, 12, 1024), keys=_SHORT, learned="wpe", qkv=("c_attn",), out="c_proj",
        mlp_names=("c_fc", "c_proj"), transposed=True, activation="gelu_new",
    ),
    "gpt_bigcode": Layout(
        sizes=Sizes(768, 50257, 12, 12, 1024), keys=_SHORT, learned="wpe", qkv=("c_attn",), out="c_proj",
        mlp_names=("c_fc", "c_proj"), activation="gelu_pytorch_tanh",
    ),
    "gpt_neo": Layout(
        sizes=Sizes(2048, 50257, 16, 24, 2048), learned="wpe", attention="attn.attention", qkv=_QKV, out="out_proj", qkv_bias=False,
        keys=Keys(heads=("num_attention_heads", "num_heads"), layers=("num_hidden_layers", "num_layers"), intermediate="intermediate_size"),
        mlp_names=("c_fc", "c_proj"), activation="gelu_new",
    ),
    "gptj": Layout(
        sizes=Sizes(4096, 50400, 16, 28, 2048), keys=_SHORT, norms=("ln_1",), arrangement=Arrangement.PARALLEL,
        qkv=_QKV, out="out_proj", qkv_bias=False, out_bias=False, mlp_names=("fc_in", "fc_out"),
        head_bias=True, activation="gelu_new", tied=False,
    ),
    "gpt_neox": Layout(
        sizes=Sizes(6144, 50432, 64, 44, 2048, 24576), keys=Keys(intermediate="intermediate_size"), base="gpt_neox", layers="layers",
        embed="embed_in", final="final_layer_norm", norms=_LN, arrangement=Arrangement.PARALLEL_TWO_NORMS, attention="attention",
        qkv=("query_key_value",), out="dense", mlp_names=_4H, bias_key="attention_bias",
        activation="gelu", activation_key="hidden_act", tied=False,
    ),
    "opt": Layout(
        sizes=Sizes(768, 50272, 12, 12, 2048, 3072), keys=Keys(intermediate="ffn_dim"), base="model.decoder", layers="layers",
        embed="embed_tokens", learned="embed_positions", position_offset=2, embed_dropout=False, final="final_layer_norm",
        norms=("self_attn_layer_norm", "final_layer_norm"), attention="self_attn", qkv=_QKV, out="out_proj",
        mlp="", mlp_names=("fc1", "fc2"), bias_key="enable_bias", activation="relu",
    ),
    "bloom": Layout(  # no limit on positions in the config: they are a linear bias
        sizes=Sizes(64, 250880, 8, 2, 2048),
        keys=Keys(("n_embed", "hidden_size"), ("num_attention_heads", "n_head"), ("num_hidden_layers", "n_layer"), ("seq_length",)),
        embed="word_embeddings", embed_norm="word_embeddings_layernorm", embed_dropout=False, norms=_LN, attention="self_attention",
        qkv=("query_key_value",), out="dense", mlp_names=_4H, alibi=True, activation="bloom_gelu", activation_key="",
    ),
    "falcon": Layout(
        sizes=Sizes(4544, 65024, 71, 32, 2048), keys=Keys(("n_embed", "hidden_size"), intermediate="ffn_hidden_size"),
        embed="word_embeddings", embed_dropout=False, norms=("input_layernorm",), arrangement=Arrangement.PARALLEL,
        attention="self_attention", qkv=("query_key_value",), out="dense", mlp_names=_4H,
        qkv_bias=False, out_bias=False, mlp_bias=False, bias_key="bias", activation="gelu", activation_key="activation",
    ),
    "mpt": Layout(
        sizes=Sizes(2048, 50368, 16, 24, 2048),
        keys=Keys(("hidden_size", "d_model"), ("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers"), ("max_seq_len",)),
        layers="blocks", embed_dropout=False, final="norm_f", norms=("norm_1", "norm_2"), norm_bias=False, qkv=("Wqkv",), out="out_proj",
        mlp="ffn", mlp_names=("up_proj", "down_proj"), qkv_bias=False, out_bias=False, mlp_bias=False,
        alibi=True, activation="gelu", activation_key="",
    ),
    "phi": Layout(
        sizes=Sizes(2048, 51200, 32, 24, 2048, 8192), keys=Keys(intermediate="intermediate_size"), base="model", layers="layers",
        embed="embed_tokens", final="final_layernorm", norms=("input_layernorm",), arrangement=Arrangement.PARALLEL,
        attention="self_attn", qkv=_QKV, out="dense", mlp_names=("fc1", "fc2"), head_bias=True,
        activation="gelu_new", activation_key="hidden_act", tied=False,
    ),
}  # fmt: skip
