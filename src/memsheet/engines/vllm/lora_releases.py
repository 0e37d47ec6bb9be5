"""Adapters that vLLM keeps room for, release by release: which ranks, which families, on which layers, and
what else grows with them.

vllm-project/vllm at the tag: ranks ``config/lora.py`` (v0.8.5 config.py:2677, v0.33.0
config/lora.py:24); embeddings and heads by ``embedding_modules`` of a family's class in
``model_executor/models``; families without ``SupportsLoRA`` there are refused at the start (v0.33.0
config/lora.py:149). Experts: ``lora/layers/fused_moe.py``, from v0.14.0 on; over expert parallelism from
v0.21.0 on (v0.14.0 :49). Extra words: ``lora_extra_vocab_size``, gone since v0.12.0. Chosen targets: v0.20.2
config/lora.py:48. Graphs: ``cudagraph_specialize_lora``, v0.12.0 config/compilation.py:559.
"""

from __future__ import annotations

from memsheet.frozen import dataclass

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
RANK, ADAPTERS = 16, 1
"""max_lora_rank and max_loras (v0.33.0 config/lora.py:34-36)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a release does with adapters. It stands for all after it until the next one in the table."""

    tag: str
    since: tuple[int, int]
    ranks: tuple[int, ...] = RANKS
    extra_words: int = 0  # that an adapter may add to the vocabulary, for which tables are larger
    largest_vocabulary: int  # beside which an adapter of the head is refused
    experts: bool = True  # routed experts have adapters
    wide: bool = False  # the result of an expert's adapter stands beside the expert's
    expert_parallel: bool = True  # also where they are dealt to ranks
    chosen: bool = True  # --lora-target-modules leaves layers out
    tables: int = 5  # of a place for each token (lora/punica_wrapper/punica_base.py)
    twice: bool = True  # CUDA graphs are recorded with adapters and without
    plain: frozenset[str] = frozenset()  # families whose router is no layer of the engine's, and has none
    without: frozenset[str]  # families whose code takes no adapters
    both: frozenset[str]  # families with adapters of the embedding and of the head
    first: frozenset[str]  # and those with one of the embedding alone
    neither: frozenset[str]  # of all others it is not known


_OWN = frozenset({"bloom", "falcon", "gpt2", "gptj", "gpt_neox", "mpt", "stablelm", "starcoder2"})
_BOTH = frozenset({
    "llama", "llava", "granite", "granitemoe", "exaone4", "mixtral", "nemotron", "phimoe", "phi3", "ernie4_5", "llama4", "gpt_bigcode",
})  # fmt: skip
_MISTRAL, _QWEN3 = frozenset({"mistral", "mistral3"}), frozenset({"qwen3", "qwen3_moe"})
_COHERE = frozenset({"cohere", "cohere2"})
_NEITHER = frozenset({
    "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "gemma", "gemma2", "gemma3", "gemma3_text", "deepseek_v2", "deepseek_v3", "glm4",
    "glm4_moe", "olmoe", "opt", "gpt_oss",
})  # fmt: skip
_OLDER = _NEITHER | {"phi", "olmo", "olmo2"}
_LIBRARY = frozenset({"glm", "gpt_bigcode", "gpt_neox", "olmo", "olmo2", "phi", "smollm3", "starcoder2"})
"""Families that v0.33.0 runs by transformers' own code (registry.py:752), which has an adapter of the
embedding (transformers/base.py:121).
"""

RELEASES = (
    Facts(
        tag="v0.11.0", since=(0, 8), ranks=RANKS[1:], extra_words=256, largest_vocabulary=257_024, experts=False, chosen=False, twice=False,
        without=_OWN | {"gpt_oss", "olmoe", "opt", "llama4", "llava"}, both=_BOTH | _MISTRAL | {"glm"}, first=_COHERE, neither=_OLDER | _QWEN3,
    ),
    Facts(
        tag="v0.14.0", since=(0, 12), wide=True, largest_vocabulary=257_024, expert_parallel=False, chosen=False, plain=frozenset({"gpt_oss"}), without=_OWN,
        both=_BOTH | _MISTRAL | {"glm"}, first=_COHERE, neither=_OLDER | _QWEN3,
    ),
    Facts(
        tag="v0.21.0", since=(0, 20), largest_vocabulary=258_048, without=_OWN, both=_BOTH | _MISTRAL | _QWEN3 | {"glm"}, first=_COHERE, neither=_OLDER,
    ),
    Facts(
        tag="v0.33.0", since=(0, 33), tables=4, largest_vocabulary=258_048, without=_OWN - {"gpt_neox", "starcoder2"},
        both=(_BOTH | _QWEN3) - {"gpt_bigcode"}, first=_COHERE | _LIBRARY, neither=_NEITHER | _MISTRAL,
    ),
)  # fmt: skip
WHOLE_EXPERTS = frozenset({"gpt_oss"})
"""Families whose adapters have one first matrix for both gates (``is_3d_moe_weight``, v0.14.0
models/gpt_oss.py:659).
"""
JOINED = (
    ("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj")),
    ("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")),
)  # fmt: skip
"""Layers that are joined as they are loaded: an adapter on one part has room on all (v0.33.0
lora/utils.py:298 is_in_target_modules).
"""


def facts_of(version: tuple[int, ...]) -> Facts | None:
    """The facts that stand for a release, None before the first that was read."""
    return next((facts for facts in reversed(RELEASES) if facts.since <= version), None)
