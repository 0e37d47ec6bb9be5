"""Which release of transformers first has code for a family, by model type."""

from __future__ import annotations

# fmt: off
_FIRST = {
    (4, 34, 0): "mistral",
    (4, 36, 0): "llava mixtral",
    (4, 37, 0): "qwen2",
    (4, 38, 0): "gemma",
    (4, 39, 0): "llava_next mamba starcoder2",
    (4, 40, 0): "olmo qwen2_moe recurrent_gemma",
    (4, 41, 0): "paligemma",
    (4, 42, 0): "gemma2",
    (4, 44, 0): "mamba2 nemotron",
    (4, 45, 0): "falcon_mamba granite granitemoe llava_onevision mllama olmoe qwen2_vl",
    (4, 46, 0): "glm idefics3",
    (4, 47, 0): "olmo2",
    (4, 48, 0): "bamba cohere2 modernbert",
    (4, 49, 0): "granitemoeshared qwen2_5_vl zamba2",
    (4, 50, 0): "gemma3 gemma3_text mistral3 smolvlm",
    (4, 51, 0): "glm4 llama4 llama4_text qwen3 qwen3_moe",
    (4, 52, 0): "granitemoehybrid internvl qwen2_5_omni",
    (4, 53, 0): "arcee falcon_h1 gemma3n gemma3n_text glm4v smollm3",
    (4, 54, 0): "exaone4 glm4_moe lfm2",
    (4, 55, 0): "gpt_oss",
    (4, 56, 0): "apertus glm4v_moe seed_oss",
    (4, 57, 0): "flex_olmo lfm2_vl ministral olmo3 qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe",
}
# fmt: on
SERVED_SINCE = {family: release for release, names in _FIRST.items() for family in names.split()}
"""By model type, the release whose models/auto/configuration_auto.py first names it, of the released packages
of 4.31 to 4.57 (CONFIG_MAPPING_NAMES). Left out are families whose checkpoints came with code of their own,
which an older release runs (``trust_remote_code``): phi, phi3, phimoe, stablelm, mpt, cohere, jamba, the
DeepSeeks, Ernie's and Hunyuan's, dots1, minimax, longcat_flash.
"""
RELEASE_FORM = r"v?(?:4\.[1-9]\d|[5-9]\.)(?!\S*-[A-Za-z])"
"""A release's own number: tags with a family's name (v4.49.0-Gemma-3) came before the release that has it,
and smaller numbers may be those of a program that uses the library (ms-swift 4.0, sentence-transformers 4.1).
"""
