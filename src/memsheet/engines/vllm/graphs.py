"""What vLLM's releases record as CUDA graphs: which steps, of how many tokens, and what those take."""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, ceil_div, given_or, maximum, minimum, round_up
from memsheet.engines.vllm.drafting import GRAPHS_OF_TOKENS_SINCE
from memsheet.engines.vllm.options import vllm_options
from memsheet.engines.vllm.releases import Release
from memsheet.formulas.runtime import NVIDIA, cublas_workspace_bytes
from memsheet.formulas.serving.drafts import verified_tokens
from memsheet.formulas.serving.graphs import (
    graph_pool_bytes,
    graph_sizes,
    recorded_kernels,
    with_driver_bytes,
)
from memsheet.frozen import dataclass
from memsheet.plan.device import Cluster, Device
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Attention, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes, Component, FromCode, Instant, Item

RUNNING = (Instant.PREFILL, Instant.DECODE)
AT_CAPTURE = FromCode("vllm-project/vllm", "v0.33.0", "vllm/compilation/cuda_graph.py", 311)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a release records. ``pieces``: steps cut at attention, of up to ``largest`` tokens; ``whole``:
    steps in which every sequence takes as many tokens. ``twice``: the largest is no more than twice the
    sequences that may run. ``streams``: on which warm-up and recording multiply matrices, each with a
    workspace.
    """

    since: tuple[int, int]
    pieces: bool = True
    whole: bool = False
    largest: int = 512
    blackwell: int = 512
    twice: bool = True
    coarse: bool = False
    streams: int = 2
    old_driver: bool = False  # its CUDA was made before driver 550


RECORDED = (
    Recorded(
        since=(0, 0), pieces=False, whole=True, largest=8192, blackwell=8192, streams=1, old_driver=True
    ),
    Recorded(since=(0, 8), twice=False),
    Recorded(since=(0, 10)),
    Recorded(since=(0, 11), whole=True),
    Recorded(since=(0, 12), whole=True, coarse=True),
    Recorded(since=(0, 14), whole=True, coarse=True, streams=1),
    Recorded(since=(0, 30), whole=True, coarse=True, streams=1, blackwell=1024),
)
"""Whole steps of decoding: v0.6.6 worker/model_runner.py:1402, sizes config.py, _set_cudagraph_sizes. In
pieces: v0.8.5 config.py:3975 and v0.9.2 config.py:2133 (up to 512 whatever may run), v0.10.2
config/scheduler.py:244; both: v0.11.0 config/__init__.py:366. Sizes: v0.12.0 config/vllm.py:1063, v0.30.0
:2218. Streams: v0.6.6 model_runner.py:1888 and v0.14.0 compilation/cuda_graph.py:272 record on the stream of
the warm-up, v0.12.0 :172 on another.
"""


def recorded_by(release: Release) -> Recorded:
    """What a release records."""
    return [recorded for recorded in RECORDED if recorded.since <= release.since][-1]


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.8.5 config.py:3975, v0.11.0 config/scheduler.py:227, v0.33.0 config/vllm.py:2463",
)
def largest_recorded(plan: Plan, release: Release, device: Device | None) -> Count:
    """Tokens of the largest graph: as said, no more than a batch."""
    recorded = recorded_by(release)
    if (said := vllm_options(plan).graph_sequences) is not None:
        return minimum(said, given_or(plan.serving.max_batched_tokens, said))
    asked = maximum(verified_rows(plan, release), 1)
    if not recorded.pieces:
        asked = round_up(ceil_div(asked, 2), 8)
    blackwell = device is not None and (device.compute_capability or "").startswith("10.")
    most = recorded.blackwell if blackwell else recorded.largest
    batch = given_or(plan.serving.max_batched_tokens, most)
    return minimum(minimum(asked, most) if recorded.twice else most, batch)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 config/vllm.py:2466: twice the tokens that sequences verify in a step, up to the limit of "
        "a graph"
    ),
)
def verified_rows(plan: Plan, release: Release) -> Count:
    """Tokens of the largest CUDA graph, as far as its own limit allows; sequences in older releases."""
    rows = 2 * given_or(plan.serving.max_sequences, 1)
    return rows * verified_tokens(plan) if release.since >= GRAPHS_OF_TOKENS_SINCE else rows


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/worker/gpu_model_runner.py:6268: what all sizes share, and what each takes besides",
)
def recorded_bytes(
    part: ModelSpec, plan: Plan, release: Release, largest: Count, cluster: Cluster | None
) -> Bytes:
    """All graphs of a stage: the pool that they share, what the driver keeps of each, and a workspace of
    matrix products on each stream of the recording.
    """
    recorded, device = recorded_by(release), cluster.device if cluster else None
    steps = given_or(plan.serving.max_sequences, 1) * verified_tokens(plan)
    whole = minimum(largest, steps) if recorded.pieces else largest
    pieces, steps_whole = (
        graph_sizes(size, coarse=recorded.coarse) if made else 0
        for size, made in ((largest, recorded.pieces), (whole, recorded.whole))
    )
    pool = graph_pool_bytes(part, plan, largest)
    if recorded.pieces and recorded.whole:
        pool += split_attention_bytes(part, plan, whole, device)
    if cluster is not None:
        spaces = recorded.streams * cublas_workspace_bytes(plan, cluster).value
        pool += Bytes(0, spaces, spaces)
    known = device is None or device.vendor in (NVIDIA, "")
    old = recorded.old_driver or not known
    sequences = whole if recorded.whole else 0
    return with_driver_bytes(pool, recorded_kernels(part, plan), pieces, steps_whole, sequences, old=old)


def graph_items(
    part: ModelSpec, plan: Plan, release: Release, largest: Count, cluster: Cluster | None
) -> list[Item]:
    """Graphs of a stage; nothing where none are recorded."""
    if not plan.options.captures:
        return []
    size = recorded_bytes(part, plan, release, largest, cluster)
    return [Item(Component.CUDA_GRAPHS, "captured", dict.fromkeys(RUNNING, size), AT_CAPTURE)]


SPLITS, SPLIT_UNITS = 32, "9."
"""Parts of a sequence that whole steps attend to at once, each with a result of its own, on Hopper, whose
FlashAttention alone does so (v0.11.0 envs.py:126 and v1/attention/backends/flash_attn.py:216, v0.33.0
config/attention.py:61; fa_utils.py, get_flash_attn_version).
"""


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/attention/backends/flash_attn.py:770, mla/flashattn_mla.py:173: on Hopper alone",
)
def split_attention_bytes(part: ModelSpec, plan: Plan, rows: Count, device: Device | None) -> Bytes:
    """Results of parts of sequences in the pool; other backends, and latent attention's, may have none."""
    if device is not None and not (device.compute_capability or SPLIT_UNITS).startswith(SPLIT_UNITS):
        return NOTHING
    plain = [mixer.head_dim * mixer.heads for mixer in part.mixers() if isinstance(mixer, Attention)]
    latent = [
        mixer.kv_lora_rank * mixer.heads for mixer in part.mixers() if isinstance(mixer, LatentAttention)
    ]
    value, high = (
        split_result_bytes(reduce(maximum, widths, 0), rows, plan.mesh.tp)
        for widths in (plain, plain + latent)
    )
    return Bytes(0, value if device is not None else 0, high)


@formula(
    cites=PAGED_SERVER_CODE,
    at="v0.33.0 v1/attention/backends/flash_attn.py:861: a result in fp32 for each part of every token",
)
def split_result_bytes(width: Count, rows: Count, tp: Count) -> Count:
    """Bytes of the results of all parts of one layer."""
    return SPLITS * FP32.nbytes(rows * ceil_div(width, tp))


ANY_DRIVER = (0, 20)
"""From when on no older driver can run a release: its CUDA is 13, which asks for 580 (VLLM_MAIN_CUDA_VERSION
of envs.py: 12.9 in v0.18.0, 13.0 in v0.20.2).
"""


def driver_note(plan: Plan, release: Release, device: Device | None) -> tuple[str, ...]:
    """What is not in the range: drivers that are older than a release's CUDA."""
    named = device is not None and device.vendor in (NVIDIA, "")
    if (
        not plan.options.captures
        or not named
        or release.since >= ANY_DRIVER
        or recorded_by(release).old_driver
    ):
        return ()
    return (
        (
            "CUDA graphs are counted as drivers from 550 on keep them; an older one takes 64 KiB a kernel of "
            "each graph, which may be some GiB"
        ),
    )
