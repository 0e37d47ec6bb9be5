"""The graph that llama.cpp reserves its compute buffers with: one batch of ``ubatch`` tokens at the end of a
full context.

Two ways of writing it: the main project's, and that of the fork ik_llama.cpp, which fuses norms with their
weight, activations with their product and sums of experts.
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs, Reserved
from memsheet.engines.llama_cpp.delta_net import DELTA_NETS, JOINED, build_delta_net
from memsheet.engines.llama_cpp.feed_forward import build_dense_ffn, build_moe_ffn
from memsheet.engines.llama_cpp.gemma4 import GEMMA_4, Kept, build_gemma_layer, build_layer_embeddings
from memsheet.engines.llama_cpp.ggml import Graph, Tensor
from memsheet.engines.llama_cpp.grouped import build_grouped_attention
from memsheet.engines.llama_cpp.latent import latent_attention
from memsheet.engines.llama_cpp.latent_fork import fork_attention
from memsheet.engines.llama_cpp.nemotron import NEMOTRONS, build_nemotron_layer
from memsheet.errors import InputError, input_error
from memsheet.plan.engine_registry import ONE_GPU, pool_servers
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    Moe,
)

SANDWICHED = frozenset({Arrangement.SANDWICH, Arrangement.POST_BRANCH})
MASK_ROWS = 64
"""Rows that a mask is padded to (ggml.h, GGML_KQ_MASK_PAD)."""


def _unlisted(what: str) -> InputError:
    """Layers whose operations nobody has listed here, which says nothing of whether llama.cpp runs them."""
    return input_error(
        "engine",
        "llama.cpp",
        f"has no list of operations here for {what}: llama.cpp may run them, but what its buffers take is "
        "not known here",
        f"engine {ONE_GPU}, {' or '.join(pool_servers())}; where the name is a GGUF file's, with the name of "
        "the model as it was released",
    )


def reserved_graph(spec: ModelSpec, how: Reserved, bytes_of: dict[int, dict[str, int]]) -> Graph:
    """The graph of a whole model. ``bytes_of``: what a layer's products read, by the last name of a module,
    where it may be copied.

    Raises InputError for layers that are not attention of grouped heads with a dense or routed feed-forward.
    """
    b = GraphBuilder(how=how, outputs=how.ubatch if how.outputs is None else how.outputs)
    blocks = [
        block
        for stack in spec.stacks
        for run in stack.runs
        for _ in range(run.count)
        for block in run.pattern
    ]
    b.device = how.host
    x = _build_token_embeddings(b, spec)
    inputs = _build_graph_inputs(b, blocks)
    kept: Kept = {}
    matrix = bytes_of.get(0, {}).get("per_layer_model_projection", 0)
    beside = build_layer_embeddings(b, spec, x, len(blocks), matrix) if blocks[0].kind in GEMMA_4 else None
    for number, (block, device) in enumerate(zip(blocks, how.layer_devices, strict=True)):
        b.device, b.layer = device, number
        sizes = bytes_of.get(number, {})
        kv = how.kv_bytes[number] if how.kv_bytes else (0, 0)
        if block.kind in GEMMA_4:
            _check_version(b, block)
            x = build_gemma_layer(b, block, x, inputs, sizes, kv, kept, beside)
            continue
        if block.kind in NEMOTRONS:
            _check_version(b, block)
            x = build_nemotron_layer(b, block, x, inputs, sizes, kv)
            continue
        x = _build_decoder_layer(
            b,
            block,
            x,
            inputs,
            sizes,
            kv,
            last=number == len(blocks) - 1 and block.kind not in WHOLE_LAST,
        )
    b.device = how.output_device
    last = b.norm(x)
    if blocks[-1].kind in WHOLE_LAST:
        last = b.make("get_rows", [last, b.input_tensor(b.outputs, of="i32")], spec.hidden, b.outputs)
    logits = b.times(bytes_of.get(-1, {}).get("head", 0), last, spec.head.width, b.outputs)
    if not how.fused:
        last.kept = logits.kept = True
    b.graph.expand(logits)
    return b.graph


WHOLE_LAST = frozenset({"qwen3_5_text", "qwen3_5_moe_text"}) | GEMMA_4 | NEMOTRONS
"""Families whose last layer runs over all positions, of which those that give logits are taken behind the
last norm (src/models/qwen35.cpp, where a draft may read them all).
"""


def _build_token_embeddings(b: GraphBuilder, spec: ModelSpec) -> Tensor:
    """Embeddings of tokens. Recent versions lay the ways of other inputs beside it: embeddings as they are,
    and in the most recent ones both mixed.
    """
    hidden, n = spec.hidden, b.how.ubatch
    x = b.make("get_rows", [b.weight(), b.input_tensor(n, of="i32")], hidden, n)
    if not b.how.fused:
        b.graph.expand(x)
    if b.how.half_mask:
        b.graph.expand(b.input_tensor(hidden, n))
    if b.how.half_mask and b.how.mixed_inputs:
        mixed = b.make("dup", [b.input_tensor(hidden, n)], hidden, n)
        tokens = [
            b.make("get_rows", [b.weight(), b.input_tensor(n, of="i32")], hidden, n),
            b.input_tensor(n, of="i64"),
            mixed,
        ]
        tokens += [b.input_tensor(1, n)] if spec.embeddings.scaled else []
        b.graph.expand(Tensor(nbytes=0, op="store", sources=tokens, base=mixed, layout=("store",)))
    return b.make("scale", [x], hidden, n) if spec.embeddings.scaled else x


def _build_graph_inputs(b: GraphBuilder, blocks: list[Block]) -> Inputs:
    n, masks = b.how.ubatch, dict[bool, Tensor]()
    attending = [m for block in blocks for m in block.mixers if isinstance(m, Attention)]
    rows = n if b.how.half_mask else -(-n // MASK_ROWS) * MASK_ROWS
    for windowed in sorted({bool(m.window or m.chunk) for m in attending} or {False}):
        cells = b.how.window_cells if windowed else b.how.cells
        given = b.input_tensor(cells, rows, of="f16" if b.how.flash and b.how.half_mask else "f32")
        cast = b.how.flash and not b.how.half_mask
        masks[windowed] = b.make("cpy", [given], cells, rows, of="f16") if cast else given
    if b.how.fused:
        return Inputs(b.input_tensor(n, of="i32"), masks, {})
    places_each = PLACES_OF_PICTURES if any(block.kind in SEEING for block in blocks) else 1
    states = b.input_tensor(b.how.kept_states, of="i32")
    turned = (
        1 if b.how.flash else max((m.kv_heads * m.head_dim for m in attending), default=1)
    )  # every number of turned values has an index
    places = {
        windowed: (b.input_tensor(n, of="i64"), b.input_tensor(n * turned, of="i64")) for windowed in masks
    }
    return Inputs(b.input_tensor(places_each * n, of="i32"), masks, places, states)


SEEING, PLACES_OF_PICTURES = frozenset({"qwen3_5_text", "qwen3_5_moe_text"}), 4
"""Families whose positions are those of a picture, of four numbers (llama-hparams.cpp, n_pos_per_embd)."""


# ---- a layer -----------------------------------------------------------------------------------------------


def _build_decoder_layer(
    b: GraphBuilder,
    block: Block,
    x: Tensor,
    inputs: Inputs,
    sizes: dict[str, int],
    kv: tuple[int, int],
    *,
    last: bool,
) -> Tensor:
    hidden = block.hidden
    mixer = block.mixers[0] if len(block.mixers) == 1 else None
    _check_version(b, block)
    if not isinstance(mixer, Attention | LatentAttention | LinearAttention) or not _is_listed(block, mixer):
        what = f"layers of {block.kind}"
        raise _unlisted(what)
    sandwiched = block.arrangement in SANDWICHED
    normed = x if block.arrangement is Arrangement.POST_BRANCH else b.norm(x)
    if isinstance(mixer, LinearAttention):
        b.graph.expand(normed)
        mixed = build_delta_net(b, mixer, normed, inputs, sizes, kv, joined=block.kind in JOINED)
    elif isinstance(mixer, LatentAttention):
        mixed = (fork_attention if b.how.fused else latent_attention)(b, mixer, normed, inputs, sizes, kv)
    else:
        mixed = build_grouped_attention(b, mixer, normed, inputs, sizes, kv)
    if sandwiched and block.kind in POST_NORM_FIRST:
        mixed = b.norm(mixed)
    if last:
        ids = b.input_tensor(b.outputs, of="i32")
        mixed, x = (
            b.make("get_rows", [mixed, ids], hidden, b.outputs),
            b.make("get_rows", [x, ids], hidden, b.outputs),
        )
    if sandwiched and block.kind not in POST_NORM_FIRST:
        mixed = b.norm(mixed)
    middle = b.make("add", [mixed, x], hidden, x.layout[-1])  # type: ignore[arg-type]
    made = _feed_forward(
        b, block, middle if block.arrangement is Arrangement.POST_BRANCH else b.norm(middle), sizes
    )
    if sandwiched:
        made = b.norm(made)
    return b.make("add", [made, middle], hidden, made.layout[-1])  # type: ignore[arg-type]


NEW = DELTA_NETS | GEMMA_4 | NEMOTRONS
"""Families whose graph was read as builds of 2026 write it, and is not known of others."""


def _check_version(b: GraphBuilder, block: Block) -> None:
    """Raises InputError for a layer whose graph is not known of the version."""
    if block.kind in NEW and not b.how.half_mask:
        what = f"layers of {block.kind} in that version"
        raise _unlisted(what)


def _is_listed(block: Block, mixer: Attention | LatentAttention | LinearAttention) -> bool:
    """Whether a layer's operations are listed."""
    return block.arrangement in (Arrangement.PRE, *SANDWICHED) and (
        block.kind in DELTA_NETS or not isinstance(mixer, LinearAttention)
    )


POST_NORM_FIRST = frozenset({"gemma3_text", "gemma2", "olmo2"})
"""Families that normalise attention's output before the last layer drops the positions that give no logits
(src/models/gemma3.cpp).
"""


def _feed_forward(b: GraphBuilder, block: Block, x: Tensor, sizes: dict[str, int]) -> Tensor:
    ff = block.feed_forward
    if isinstance(ff, Moe):
        return build_moe_ffn(b, ff, x, sizes)
    if not isinstance(ff, Dense):
        raise _unlisted(f"layers of {block.kind} without a feed-forward")
    return build_dense_ffn(b, ff, x, sizes)
