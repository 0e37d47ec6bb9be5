"""llama.cpp on NVIDIA cards, layers dealt to devices; and ik_llama.cpp, a fork that fuses more (named in
``engine_version``).

Read at 00395eb2 (2026); of December 2025's b7342 the masks and the order of offloading; the fork at 8db70379
(May 2025).
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.splits import dealt_layers
from memsheet.plan.defaults import COMMON_DTYPES, SERVED_ADAPTERS
from memsheet.plan.dtypes import FP16
from memsheet.plan.engine import server_engine
from memsheet.plan.plan import AttentionKind, SpeculativeMethod
from memsheet.plan.server_limits import ServerLimits
from memsheet.plan.serving_facts import ServingFacts, Unserved
from memsheet.plan.speculative import Drafting
from memsheet.references import GGML, LLAMA_CPP
from memsheet.sheet import Cited

UBATCH = 512
"""Tokens of a physical batch (common/common.h, n_ubatch)."""

MAX_SEQUENCES = 256
"""Sequences of one context at most (src/llama-cparams.h, LLAMA_MAX_SEQ; llama-context.cpp throws above); the
fork of 2025 has no such bound.
"""

OWN = (
    "max_batched_tokens",
    "k_dtype",
    "gpu_layers",
    "host_experts",
    "tensor_overrides",
    "tensor_split",
    "split_mode",
    "main_gpu",
    "kv_unified",
    "swa_full",
    "host_cache",
    "logical_batch",
    "mla_mode",
    "attn_max_batch",
    "fused_moe",
    "page_tokens",
)
"""Keys of serving that it reads, or refuses by a reason of its own; the logical batch only sizes what the
host holds.
"""


CACHE_NAMES = (
    *COMMON_DTYPES,
    *(f"gguf:{name}" for name in ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "IQ4_NL")),
)
"""Types that its cache may have (common/arg.cpp, kv_cache_types)."""


def is_fork(version: str | None) -> bool:
    """Whether ``engine_version`` names ik_llama.cpp."""
    text = (version or "").lower()
    return "ik_llama" in text or text.startswith("ik")


def device_layer_counts(layers: int, devices: int, version: str | None) -> tuple[int, ...] | None:
    """Layers of each device where all have as much free memory: shares of all layers and the output
    (llama-model.cpp, load_tensors).
    """
    del version
    found = [0] * devices
    for layer in range(layers):
        found[layer * devices // (layers + 1)] += 1
    return tuple(found) if all(found) else None


# fmt: off
NARROW = "has windows, gates or sinks of heads that have no list of operations yet"
UNSERVED = {
    "mimo_v2_flash": Unserved((0, 0, 0), NARROW),
    "step3p5": Unserved((0, 0, 0), NARROW),
    "minimax_m3_vl_text": Unserved((0, 0, 0), "has an indexer without a list of operations yet"),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "minimax"), Unserved((0, 0, 0), "has no list of operations yet")),
    "longcat_flash": Unserved((0, 0, 0), "has two attentions a layer"),
}
"""Families that would be read as others are, and are not built so (ggml-org/llama.cpp src/models)."""
# fmt: on

ENGINE = server_engine(
    name="llama.cpp",
    tested="00395eb2 (2026)",
    server="llama_cpp",
    serving_axes=("pp",),
    cache_dtypes=None,
    cache_names=CACHE_NAMES,
    one_cache=True,  # its cells are those of all sequences
    stores_gguf=True,
    attention=(AttentionKind.FLASH, AttentionKind.EAGER),
    stages=device_layer_counts,
    dealt=dealt_layers,
    serving=ServingFacts(
        unserved=UNSERVED,
        usual_dtype=FP16,  # whatever the file stores
        shares_length=True,  # -c is that of all sequences (common/arg.cpp)
        torch_memory=False,
        batched_tokens=UBATCH,
        whole_drafts=True,  # layers are dealt to devices, none is cut
        joins_projections=True,
        fewer_bits=("gguf:Q8_0", "gguf:Q4_K_M"),
        fewer_bit_caches=("gguf:Q8_0",),  # common/arg.cpp, kv_cache_types
    ),
    models=frozenset(
        {*(f"serving.{key}" for key in OWN), "offload.parameters", *SERVED_ADAPTERS}
        - {"serving.max_cpu_loras"}
    ),
    offload=("parameters",),
    drafting=Drafting(
        # -md (common/speculative.cpp draft-simple; eagle3 and mtp were not read)
        methods=(((0, 0), (SpeculativeMethod.DRAFT,)),),
        vocabulary_gap=128,  # common/speculative.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE
    ),
    limits=ServerLimits(
        own_kernels=True,  # ggml/src/ggml-cuda/fattn.cu
        own_padding=True,  # a file's rows are what they are
        own_compute=lambda _: True,  # its kernels are those of a type of weights
    ),
    version_form=r"\d|ik_llama",
    version_example="a build or commit, for example b7342, or ik_llama.cpp",
    adapters=(),
    evidence={
        "buffers": Cited(LLAMA_CPP, "model, KV and compute buffers"),
        "compute": Cited(GGML, "ggml-alloc.c"),
    },
)
