"""What SGLang's attention backends keep beside the pool: a workspace, and for the graphs of decoding a table
of where every token of every sequence is. It is made after the pool, from what the fraction leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from memsheet.arith import Count, ceil_div, maximum
from memsheet.engines.sglang.options import sglang_options
from memsheet.engines.sglang.releases import Release
from memsheet.formulas.runtime import NVIDIA
from memsheet.frozen import dataclass
from memsheet.plan.device import Device
from memsheet.plan.dtypes import FP32, INT32, INT64
from memsheet.plan.model import Attention, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import SGLANG, formula
from memsheet.sheet import Bytes, Cited, Component, Instant, Item
from memsheet.units import MIB

AT_STATE = Cited(SGLANG, "v0.5.23 layers/attention: init_cuda_graph_state, and each backend's workspace")
WORKSPACE, WIDE_WORKSPACE, INTEGERS = 384 * MIB, 512 * MIB, 8 * MIB
"""FlashInfer's (v0.4.3.post4 global_config.py:36, v0.5.23 environ.py:1221), that of families with more
(v0.4.3.post4 flashinfer_backend.py:104, v0.5.23 :431) and of TensorRT-LLM's kernels
(trtllm_mha_backend.py:80), and what each of FlashInfer's wrappers has of its own (flashinfer v0.2.5
decode.py, v0.6.2 :739).
"""
WIDE = frozenset({"qwen2", "qwen3", "mimo", "qwen3_vl", "qwen3_vl_moe"})
EAGER_WRAPPERS = 4
"""Of FlashInfer's outside graphs: a ragged one, and three for each kind of window (v0.4.3.post4
flashinfer_backend.py:150, v0.5.23 :520).
"""
SPLITS, LATENT_SPLITS, MOST_SPLITS = 8, 128, 256
"""Parts of a sequence in Triton's decoding (triton_attention_num_kv_splits, v0.4.3.post4 server_args.py:165);
of latent attention as many as a card has multiprocessors, to the next power of two (v0.5.23
triton_backend.py:83), which are up to 256.
"""
HOPPER, LARGE_BLACKWELL = "9.", "10."
FLASH_SINCE, ALL_FLASH_SINCE, LATENT_SPLITS_SINCE = (0, 4, 6), (0, 5, 12), (0, 5, 20)
"""From when on Hopper has FlashAttention by itself, first for some families (v0.4.9.post6
model_executor/model_runner.py:387), then for all (v0.5.12 server_args.py:2607); v0.4.3.post4 has none.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSizes:
    """What the buffers are sized by: ``rows`` tokens of the largest graph, of ``length`` tokens each at most,
    and how many ``sizes`` are recorded. ``heads``: elements of a rank's attention output; ``kinds``: of
    windows.
    """

    rows: Count
    length: Count
    sizes: Count
    page: int
    output: Count
    heads: Count
    kinds: int
    workspace: int
    splits: Bytes


@formula(
    cites=SGLANG,
    at="v0.5.23 layers/attention/flashattention_kernels.py:2443: a page's number, in each kind of window",
)
def paged_tables(asked: StateSizes) -> Bytes:
    """Bytes of the tables of pages that FlashAttention and TensorRT-LLM's kernels read."""
    return Bytes.exact(asked.kinds * INT32.nbytes(asked.rows * ceil_div(asked.length, asked.page)))


@formula(
    cites=SGLANG,
    at=(
        "v0.4.3.post4 layers/attention/flashinfer_backend.py:254, v0.5.23 :1106: a token's place and a mask "
        "of one byte; a wrapper for each size that is recorded"
    ),
)
def flashinfer_bytes(asked: StateSizes) -> Bytes:
    """Bytes of FlashInfer's workspace, of its tables and of its wrappers."""
    tables = asked.rows * asked.length * (asked.kinds * INT32.nbytes(1) + 1)
    wrappers = asked.kinds * (asked.sizes + EAGER_WRAPPERS - 1) + 1
    return Bytes.exact(asked.workspace + tables + wrappers * INTEGERS)


@formula(
    cites=SGLANG,
    at=(
        "v0.4.3.post4 layers/attention/triton_backend.py:207, v0.5.23 :1169: fp32 results of every part of a "
        "sequence, a token's place and a mask of one byte"
    ),
)
def triton_bytes(asked: StateSizes) -> Bytes:
    """Bytes of Triton's buffers for graphs; those of places are of four bytes in older releases, of eight in
    newer.
    """
    low, value, high = (
        FP32.nbytes(asked.rows * splits * (asked.output + asked.heads))
        for splits in (asked.splits.low, asked.splits.value, asked.splits.high)
    )
    places = asked.rows * asked.length
    narrow, wide = INT32.nbytes(places), INT64.nbytes(places) * asked.kinds + places
    return Bytes(low + narrow, value + wide, high + wide)


def attention_items(
    part: ModelSpec, plan: Plan, release: Release, rows: Count, sizes: int, device: Device | None
) -> list[Item]:
    """Buffers of the backend that a release takes by itself: a range where it may take one of several."""
    asked = _state_sizes(part, plan, release, rows if plan.options.captures else 0, sizes)
    if asked is None:
        return []
    taken, others = _backends(part, plan, release, device)
    sizes_of = [found(asked) for found in (taken, *others)]
    size = Bytes(
        min(one.low for one in sizes_of), sizes_of[0].value, reduce(maximum, (one.high for one in sizes_of))
    )
    return [
        Item(
            Component.WORKSPACES,
            "attention",
            dict.fromkeys((Instant.PREFILL, Instant.DECODE), size),
            AT_STATE,
        )
    ]


def _state_sizes(part: ModelSpec, plan: Plan, release: Release, rows: Count, sizes: int) -> StateSizes | None:
    mixers = [mixer for mixer in part.mixers() if isinstance(mixer, Attention | LatentAttention)]
    if not mixers:
        return None
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    widths = [
        mixer.heads * (mixer.kv_lora_rank if isinstance(mixer, LatentAttention) else mixer.head_dim)
        for mixer in mixers
    ]
    windows = any(isinstance(mixer, Attention) and mixer.window for mixer in mixers)
    grown = latent and release.since >= LATENT_SPLITS_SINCE
    return StateSizes(
        rows=rows,
        length=plan.serving.max_model_len or 0,
        sizes=sizes if plan.options.captures else 0,
        page=plan.cache.page_tokens or 1,
        output=ceil_div(reduce(maximum, widths), plan.mesh.attention_tp),
        heads=ceil_div(reduce(maximum, [mixer.heads for mixer in mixers]), plan.mesh.attention_tp),
        kinds=1 + windows,
        workspace=WIDE_WORKSPACE if part.model_type in WIDE else WORKSPACE,
        splits=Bytes(SPLITS, LATENT_SPLITS, MOST_SPLITS) if grown else Bytes.exact(SPLITS),
    )


Backend = Callable[[StateSizes], Bytes]


def _backends(
    part: ModelSpec, plan: Plan, release: Release, device: Device | None
) -> tuple[Backend, tuple[Backend, ...]]:
    """The backend that is taken by itself, and others that may be: where it is installed, drafts and
    families say (v0.5.12 server_args.py:2579, v0.5.23 arg_groups/model_override_base.py:277).
    """
    mixers = part.mixers()
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    if said := sglang_options(plan).attention_kernels:
        return BACKENDS[said], ()
    sinks = any(isinstance(mixer, Attention) and mixer.sinks for mixer in mixers)
    usual: Backend = triton_bytes if latent or sinks else flashinfer_bytes
    named = device is not None and device.vendor in (NVIDIA, "")
    units = (device.compute_capability or "") if device is not None and named else ""
    if not units:
        return paged_tables, (flashinfer_bytes, triton_bytes)
    if units.startswith(HOPPER) and release.since >= FLASH_SINCE:
        sure = release.since >= ALL_FLASH_SINCE and plan.speculative is None
        return paged_tables, () if sure else (flashinfer_bytes, triton_bytes)
    if units.startswith(LARGE_BLACKWELL):
        return flashinfer_bytes, (_trtllm_bytes, triton_bytes)
    return usual, (triton_bytes, flashinfer_bytes)


def _trtllm_bytes(asked: StateSizes) -> Bytes:
    tables = paged_tables(asked)
    return Bytes(tables.low, tables.value + WIDE_WORKSPACE, tables.high + WIDE_WORKSPACE)


BACKENDS: Mapping[str, Backend] = {
    "flash": paged_tables, "flashinfer": flashinfer_bytes, "triton": triton_bytes, "trtllm": _trtllm_bytes,
}  # fmt: skip
"""By the names that a plan has for them."""
