"""The graph that llama.cpp reserves its compute buffers with: one batch of ``ubatch`` tokens at the end of a
full context.

Two ways of writing it: the main project's, and that of the fork ik_llama.cpp, which fuses norms with their
weight, activations with their product and sums of experts.
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import Building, Inputs, Reserved
from memsheet.engines.llama_cpp.delta_net import DELTA_NETS, JOINED, build_delta_net
from memsheet.engines.llama_cpp.ggml import Graph, Tensor
from memsheet.engines.llama_cpp.latent import latent_attention
from memsheet.engines.llama_cpp.latent_fork import fork_attention
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
    b = Building(how=how, outputs=how.ubatch if how.outputs is None else how.outputs)
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
    for number, (block, device) in enumerate(zip(blocks, how.layer_devices, strict=True)):
        b.device, b.experts = device, how.host if number in how.host_experts else device
        sizes = bytes_of.get(number, {})
        x = _build_decoder_layer(
            b,
            block,
            x,
            inputs,
            sizes,
            how.kv_bytes[number] if how.kv_bytes else (0, 0),
            last=number == len(blocks) - 1 and block.kind not in WHOLE_LAST,
        )
    b.device = how.output_device
    last = b.norm(x)
    if blocks[-1].kind in WHOLE_LAST:
        last = b.make("get_rows", [last, b.given(b.outputs, of="i32")], spec.hidden, b.outputs)
    logits = b.times(bytes_of.get(-1, {}).get("head", 0), last, spec.head.width, b.outputs)
    if not how.fused:
        last.kept = logits.kept = True
    b.graph.expand(logits)
    return b.graph


WHOLE_LAST = frozenset({"qwen3_5_text", "qwen3_5_moe_text"})
"""Families whose last layer runs over all positions, of which those that give logits are taken behind the
last norm (src/models/qwen35.cpp, where a draft may read them all).
"""


def _build_token_embeddings(b: Building, spec: ModelSpec) -> Tensor:
    """Embeddings of tokens. Recent versions lay the ways of other inputs beside it: embeddings as they are,
    and in the most recent ones both mixed.
    """
    hidden, n = spec.hidden, b.how.ubatch
    x = b.make("get_rows", [b.weight(), b.given(n, of="i32")], hidden, n)
    if not b.how.fused:
        b.graph.expand(x)
    if b.how.half_mask:
        b.graph.expand(b.given(hidden, n))
    if b.how.half_mask and b.how.mixed_inputs:
        mixed = b.make("dup", [b.given(hidden, n)], hidden, n)
        tokens = [
            b.make("get_rows", [b.weight(), b.given(n, of="i32")], hidden, n),
            b.given(n, of="i64"),
            mixed,
        ]
        tokens += [b.given(1, n)] if spec.embeddings.scaled else []
        b.graph.expand(Tensor(nbytes=0, op="store", sources=tokens, base=mixed, layout=("store",)))
    return b.make("scale", [x], hidden, n) if spec.embeddings.scaled else x


def _build_graph_inputs(b: Building, blocks: list[Block]) -> Inputs:
    n, masks = b.how.ubatch, dict[bool, Tensor]()
    attending = [m for block in blocks for m in block.mixers if isinstance(m, Attention)]
    rows = n if b.how.half_mask else -(-n // MASK_ROWS) * MASK_ROWS
    for windowed in sorted({bool(m.window or m.chunk) for m in attending} or {False}):
        cells = b.how.window_cells if windowed else b.how.cells
        given = b.given(cells, rows, of="f16" if b.how.flash and b.how.half_mask else "f32")
        cast = b.how.flash and not b.how.half_mask
        masks[windowed] = b.make("cpy", [given], cells, rows, of="f16") if cast else given
    if b.how.fused:
        return Inputs(b.given(n, of="i32"), masks, {})
    places_each = PLACES_OF_PICTURES if any(block.kind in SEEING for block in blocks) else 1
    states = b.given(b.how.kept_states, of="i32")
    turned = (
        1 if b.how.flash else max((m.kv_heads * m.head_dim for m in attending), default=1)
    )  # every number of turned values has an index
    places = {windowed: (b.given(n, of="i64"), b.given(n * turned, of="i64")) for windowed in masks}
    return Inputs(b.given(places_each * n, of="i32"), masks, places, states)


SEEING, PLACES_OF_PICTURES = frozenset({"qwen3_5_text", "qwen3_5_moe_text"}), 4
"""Families whose positions are those of a picture, of four numbers (llama-hparams.cpp, n_pos_per_embd)."""


# ---- a layer -----------------------------------------------------------------------------------------------


def _build_decoder_layer(
    b: Building,
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
    if not isinstance(mixer, Attention | LatentAttention | LinearAttention) or not _is_listed(
        b, block, mixer
    ):
        what = f"layers of {block.kind}"
        raise _unlisted(what if b.how.half_mask or block.kind not in NEW else f"{what} in that version")
    sandwiched = block.arrangement in SANDWICHED
    normed = x if block.arrangement is Arrangement.POST_BRANCH else b.norm(x)
    if isinstance(mixer, LinearAttention):
        b.graph.expand(normed)
        mixed = build_delta_net(b, mixer, normed, inputs, sizes, kv, joined=block.kind in JOINED)
    elif isinstance(mixer, LatentAttention):
        mixed = (fork_attention if b.how.fused else latent_attention)(b, mixer, normed, inputs, sizes, kv)
    else:
        mixed = _build_attention(b, mixer, normed, inputs, sizes, kv)
    if sandwiched and block.kind in POST_NORM_FIRST:
        mixed = b.norm(mixed)
    if last:
        ids = b.given(b.outputs, of="i32")
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


NEW = DELTA_NETS
"""Families whose graph was read as builds of 2026 write it, and is not known of others."""


def _is_listed(b: Building, block: Block, mixer: Attention | LatentAttention | LinearAttention) -> bool:
    """Whether a layer's operations are listed for the version."""
    if block.arrangement not in (Arrangement.PRE, *SANDWICHED) or (block.kind in NEW and not b.how.half_mask):
        return False
    return block.kind in DELTA_NETS or not isinstance(mixer, LinearAttention)


POST_NORM_FIRST = frozenset({"gemma3_text", "gemma2", "olmo2"})
"""Families that normalise attention's output before the last layer drops the positions that give no logits
(src/models/gemma3.cpp).
"""


def _build_attention(
    b: Building, m: Attention, x: Tensor, inputs: Inputs, sizes: dict[str, int], kv: tuple[int, int]
) -> Tensor:
    n, d, heads, kept = b.how.ubatch, m.head_dim, m.heads, m.kv_heads
    biased = {w.path.split(".")[-2] for w in m.weights if w.path.endswith(".bias")}
    asked = 2 * heads if m.gated_output else heads
    q, k, v = (
        _build_projection(b, name, x, width, sizes, biased)
        for name, width in (("q_proj", d * asked), ("k_proj", d * kept), ("v_proj", d * kept))
    )
    gate = b.view(q, "strided", d * heads, n) if m.gated_output else None
    q, k = _build_rotary_heads(b, m, q, heads, inputs), _build_rotary_heads(b, m, k, kept, inputs)
    if not b.how.fused:
        v = b.view(v, "3d", d, kept, n)
    for tensor in (q, k, v) if b.how.fused else (q, v, k):
        b.graph.expand(tensor)
    keys, values = b.held(kv[0]), b.held(kv[1])
    windowed = bool(m.window or m.chunk)
    b.store(k, keys, inputs, 0, windowed=windowed)
    b.store(v, values, inputs, 1, windowed=windowed)
    mask = inputs.masks[windowed]
    made = _build_cached_attention(
        b, m, b.view(q, "permuted", d, n, heads), (b.view(keys, "read"), b.view(values, "read")), mask
    )
    b.graph.expand(made)
    hidden = int(x.layout[1])
    if gate is not None:
        opened = b.make("unary", [b.make("cont", [gate], d * heads, n)], d * heads, n)
        made = b.make("mul", [made, opened], d * heads, n)
    out = b.times(sizes.get("o_proj", 0), made, hidden, n)
    return b.make("add", [out, b.weight()], hidden, n) if "o_proj" in biased else out


def _build_projection(
    b: Building, name: str, x: Tensor, width: int, sizes: dict[str, int], biased: set[str]
) -> Tensor:
    found = b.times(sizes.get(name, 0), x, width, b.how.ubatch)
    return b.make("add", [found, b.weight()], width, b.how.ubatch) if name in biased else found


def _build_rotary_heads(b: Building, m: Attention, x: Tensor, heads: int, inputs: Inputs) -> Tensor:
    """Heads apart, normalised where the family does, and rotated."""
    shaped = b.view(x, "f32", m.head_dim, heads, b.how.ubatch)
    shaped.rows = b.how.ubatch
    if m.qk_norm is not None:
        shaped = b.norm(shaped)
    return b.make("rope", [shaped, inputs.positions], m.head_dim, heads, b.how.ubatch)


def _build_cached_attention(
    b: Building, m: Attention, q: Tensor, cache: tuple[Tensor, Tensor], mask: Tensor
) -> Tensor:
    """Attention over the cache: fused, or scores of every head over every cell."""
    n, d, heads = b.how.ubatch, m.head_dim, m.heads
    if b.how.flash:
        found = b.make("flash_attn", [q, *cache, mask], d, heads, n)
        return b.view(found, "f32", d * heads, n)
    cells = int(mask.layout[1])
    scores = b.make("mul_mat_cells", [cache[0], q], cells, n, heads)
    soft = b.make("soft_max", [scores, mask], cells, n, heads)
    made = b.make("mul_mat_cells", [cache[1], soft], d, n, heads)
    return b.make("cont", [b.view(made, "permuted", d, heads, n)], d * heads, n)


# ---- feed-forward ------------------------------------------------------------------------------------------


def _feed_forward(b: Building, block: Block, x: Tensor, sizes: dict[str, int]) -> Tensor:
    ff = block.feed_forward
    if isinstance(ff, Moe):
        return _build_moe_ffn(b, ff, x, sizes)
    if not isinstance(ff, Dense):
        raise _unlisted(f"layers of {block.kind} without a feed-forward")
    return _build_dense_ffn(b, ff, x, sizes)


def _build_dense_ffn(b: Building, ff: Dense, x: Tensor, sizes: dict[str, int]) -> Tensor:
    hidden, n, inner = int(x.layout[1]), int(x.layout[2]), ff.intermediate
    if ff.gated and ff.fused:
        made = b.make("glu", [b.times(sizes.get("gate_up_proj", 0), x, 2 * inner, n)], inner, n)
    elif ff.gated:
        up, gate = (
            b.times(sizes.get("up_proj", 0), x, inner, n),
            b.times(sizes.get("gate_proj", 0), x, inner, n),
        )
        made = b.make("glu", [gate, up], inner, n)
    else:
        made = b.make("unary", [b.times(sizes.get("up_proj", 0), x, inner, n)], inner, n)
    return b.times(sizes.get("down_proj", 0), made, hidden, n)


def _build_moe_ffn(b: Building, ff: Moe, x: Tensor, sizes: dict[str, int]) -> Tensor:
    """Experts chosen and weighted, all choices of all tokens at once, then their sum. Biases of the choice
    and its groups are left out: their tensors have a number for each expert and token, which is below a
    mebibyte.
    """
    hidden, n, used, inner = int(x.layout[1]), int(x.layout[2]), ff.experts_per_token, ff.intermediate
    routed = b.times(0, x, ff.experts, n)
    shares = b.make("soft_max", [routed], ff.experts, n)
    order = b.make("argsort", [shares], ff.experts, n, of="i32")
    chosen = b.view(order, "chosen", used, n)
    picked = b.make("pick", [b.view(shares, "f32", 1, ff.experts, n), chosen], 1, used, n)
    weights = _build_router_weight_norm(b, picked, used, n)
    if not b.how.fused:
        b.graph.expand(weights)
    wide = b.view(x, "f32", hidden, 1, n)
    if b.how.fused:
        both = [
            b.expert(_expert_up_matrix_bytes(sizes)),
            b.expert(_expert_up_matrix_bytes(sizes)),
            wide,
            chosen,
        ]
        made = b.make("moe_up_gate", both, inner, used, n)
    else:
        up = b.make("mul_mat_id", [b.expert(_expert_up_matrix_bytes(sizes)), wide, chosen], inner, used, n)
        gate = b.make("mul_mat_id", [b.expert(_expert_up_matrix_bytes(sizes)), wide, chosen], inner, used, n)
        made = b.make("glu", [gate, up], inner, used, n)
    experts = b.make("mul_mat_id", [b.expert(sizes.get("down_proj", 0)), made, chosen], hidden, used, n)
    experts = b.make("mul", [experts, weights], hidden, used, n)
    found = _build_expert_sum(b, experts, hidden, used, n)
    shared = {
        name.removeprefix("shared."): size for name, size in sizes.items() if name.startswith("shared.")
    }
    if ff.shared is None:
        return found
    beside = _build_dense_ffn(b, ff.shared, x, shared)
    if any(w.path.endswith("shared_expert_gate.weight") for w in ff.weights):
        share = b.make("unary", [b.times(shared.get("shared_expert_gate", 0), x, 1, n)], 1, n)
        beside = b.make("mul", [beside, share], hidden, n)
    return b.make("add", [found, beside], hidden, n)


def _expert_up_matrix_bytes(sizes: dict[str, int]) -> int:
    """Bytes of one of the two input matrices of the experts, which a file keeps apart."""
    return sizes.get("up_proj", sizes.get("gate_up_proj", 0) // 2)


def _build_router_weight_norm(b: Building, picked: Tensor, used: int, n: int) -> Tensor:
    flat = b.view(picked, "f32", used, n)
    total = b.make("sum_rows", [flat], 1, n)
    if not b.how.fused:
        total = b.make("clamp", [total], 1, n)
    return b.view(b.make("div", [flat, total], used, n), "f32", 1, used, n)


def _build_expert_sum(b: Building, experts: Tensor, hidden: int, used: int, n: int) -> Tensor:
    if b.how.fused:
        return b.make("multi_add", [b.view(experts, "strided", hidden, n)], hidden, n)
    b.graph.expand(experts)
    parts = [b.view(experts, "strided", hidden, n) for _ in range(used)]
    for part in parts:
        b.graph.expand(part)
    found = parts[0]
    for part in parts[1:]:
        found = b.make("add", [found, part], hidden, n)
        b.graph.expand(found)
    return found if used > 1 else b.make("cont", [found], hidden, n)
