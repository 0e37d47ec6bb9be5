"""Models whose publisher, or a public repository, states which bundled model they were made of without a
change of its shapes.
"""

from __future__ import annotations

from typing import NamedTuple


class StatedBase(NamedTuple):
    """``words``: behind the name, what it is and what differs; ``source``: who says so."""

    model: str
    words: str
    source: str


_RECIPES = "vllm-project/recipes at 8959cf6, models"
_CARD = "its model card"
_LENGTH = "made for another length"
_ROWS = (
    ("agentica-org/deepcoder-14b-preview", "qwen2.5-14b", "is Qwen2.5-14B distilled and tuned", f"{_CARD}: fine-tuned from DeepSeek-R1-Distilled-Qwen-14B"),
    ("allenai/llama-3.1-tulu-3-8b", "llama-3.1-8b", "is Llama 3.1 8B tuned", "allenai/open-instruct e6c3044 docs/tulu3.md: model_name_or_path meta-llama/Llama-3.1-8B"),
    ("allenai/llama-3.1-tulu-3-70b", "llama-3.1-70b", "is Llama 3.1 70B tuned", "allenai/open-instruct e6c3044 docs/tulu3.md: model_name_or_path meta-llama/Llama-3.1-70B"),
    ("deepseek-ai/deepseek-r1-distill-qwen-7b", "qwen2.5-math-7b", f"is Qwen2.5-Math-7B distilled, {_LENGTH}", "deepseek-ai/DeepSeek-R1 README, table of distilled models"),
    ("deepseek-ai/deepseek-r1-distill-qwen-14b", "qwen2.5-14b", "is Qwen2.5-14B distilled", "deepseek-ai/DeepSeek-R1 README, table of distilled models"),
    ("deepseek-ai/deepseek-r1-distill-qwen-32b", "qwen2.5-32b", "is Qwen2.5-32B distilled", "deepseek-ai/DeepSeek-R1 README, table of distilled models"),
    ("deepseek-ai/deepseek-v2.5", "deepseek-v2", "is DeepSeek-V2-Chat and Coder-V2-Instruct as one", f"{_CARD}: combines DeepSeek-V2-Chat and DeepSeek-Coder-V2-Instruct"),
    ("huggyllama/llama-7b", "open-llama-7b", "is LLaMA-7B, whose shapes OpenLLaMA's are", "openlm-research/open_llama README: a drop-in replacement of LLaMA"),
    ("huggyllama/llama-13b", "open-llama-13b", "is LLaMA-13B, whose shapes OpenLLaMA's are", "openlm-research/open_llama README: a drop-in replacement of LLaMA"),
    ("ibm-granite/granite-3.2-2b-instruct", "granite-3.1-2b", "is Granite 3.1 2B tuned", f"{_CARD}: built on top of Granite-3.1-2B-Instruct"),
    ("ibm-granite/granite-3.2-8b-instruct", "granite-3.1-8b", "is Granite 3.1 8B tuned", f"{_CARD}: built on top of Granite-3.1-8B-Instruct"),
    ("jinaai/jina-embeddings-v5-text-small-retrieval", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("jinaai/jina-embeddings-v5-text-small-text-matching", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("jinaai/jina-embeddings-v5-text-small-classification", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("jinaai/jina-embeddings-v5-text-small-clustering", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("katanemo/plano-orchestrator-4b", "qwen3-4b-2507", "is Qwen3-4B-Instruct-2507 tuned", f"{_CARD}: base_model Qwen/Qwen3-4B-Instruct-2507"),
    ("liquidai/lfm2.5-1.2b-jp-202606", "lfm2.5-1.2b", "is LFM2.5 1.2B tuned", f"{_RECIPES}/LiquidAI/LFM2.5-1.2B-JP-202606.yaml: Lfm2ForCausalLM, 1.2 B, 32K"),
    ("mindlab-research/macaron-v1-coding-venti", "glm-5.2", "is GLM-5.2 with an adapter merged", f"{_RECIPES}/mindlab-research/Macaron-V1-Coding-Venti.yaml"),
    ("minimaxai/minimax-m3", "minimax-m3-text", "is accounted without its tower for pictures, 0.87 of 427 B", f"{_RECIPES}/MiniMaxAI/MiniMax-M3.yaml; the tower of MiniMaxM3VLVisionConfig, transformers 5.23.0"),
    ("mistralai/devstral-small-2507", "mistral-small-3.1-24b", "is Mistral Small 3.1 tuned; the tower for pictures is accounted and it has none", f"{_CARD}: finetuned from Mistral-Small-3.1, its vision encoder removed"),
    ("mistralai/magistral-small-2506", "mistral-small-3.1-24b", "is Mistral Small 3.1 tuned; the tower for pictures is accounted and it has none", f"{_CARD}: builds upon Mistral Small 3.1"),
    ("mistralai/magistral-small-2507", "mistral-small-3.1-24b", "is Mistral Small 3.1 tuned; the tower for pictures is accounted and it has none", f"{_CARD}: builds upon Mistral Small 3.1"),
    ("mistralai/magistral-small-2509", "mistral-small-3.1-24b", "is Mistral Small 3.2 tuned", f"{_CARD}: builds upon Mistral Small 3.2"),
    ("neuralmagic/sparse-llama-3.1-8b-2of4", "llama-3.1-8b", "is Llama 3.1 8B with half its weights zero, accounted as if all were kept", f"{_CARD}: 2:4 sparse version of Llama-3.1-8B"),
    ("openai/gpt-oss-safeguard-20b", "gpt-oss-20b", "is gpt-oss-20b tuned", f"{_CARD}: built upon gpt-oss"),
    ("openai/gpt-oss-safeguard-120b", "gpt-oss-120b", "is gpt-oss-120b tuned", f"{_CARD}: built upon gpt-oss"),
    ("openlm-research/open-llama-3b-v2", "open-llama-3b", "is OpenLLaMA's 3B on other data", "openlm-research/open_llama README: v2 is the same model on another mixture"),
    ("openlm-research/open-llama-7b-v2", "open-llama-7b", "is OpenLLaMA's 7B on other data", "openlm-research/open_llama README: v2 is the same model on another mixture"),
    ("qwen/qwen3guard-gen-0.6b", "qwen3-0.6b", "is Qwen3-0.6B tuned", f"{_CARD}: base_model Qwen/Qwen3-0.6B"),
    ("qwen/qwen3guard-gen-4b", "qwen3-4b", "is Qwen3-4B tuned", f"{_CARD}: base_model Qwen/Qwen3-4B"),
    ("qwen/qwen3guard-gen-8b", "qwen3-8b", "is Qwen3-8B tuned", f"{_CARD}: base_model Qwen/Qwen3-8B"),
    ("tinyllama/tinyllama-v1.1", "tinyllama-1.1b", "is TinyLlama 1.1B on other data", "jzhang38/TinyLlama README: v1.1, the same architecture"),
    ("zai-org/glm-4.6", "glm-4.7", "is accounted as GLM-4.7, as long and as large", f"{_RECIPES}/zai-org/GLM-4.6.yaml: 357 B, 202,752 positions, GLM-4.5's architecture"),
    ("zai-org/glm-4.6v", "glm-4.5v-106b-a12b", f"is accounted as GLM-4.5V, as large, {_LENGTH}", f"{_RECIPES}/zai-org/GLM-4.6V.yaml: 107 B, 128K"),
    ("zai-org/glm-4.6v-flash", "glm-4.1v-9b", f"is accounted as GLM-4.1V-9B, of the same class and size, {_LENGTH}", f"{_RECIPES}/zai-org/GLM-GA.yaml: Glm4vForConditionalGeneration, about 10 B"),
    ("zai-org/glm-ga", "glm-4.1v-9b", f"is accounted as GLM-4.1V-9B, of the same class and size, {_LENGTH}", f"{_RECIPES}/zai-org/GLM-GA.yaml: on GLM-4.6V-Flash, Glm4vForConditionalGeneration, about 10 B"),
    ("zai-org/glyph", "glm-4.1v-9b", f"is GLM-4.1V-9B tuned, {_LENGTH}", f"thu-coai/Glyph README: from GLM-4.1V-9B-Base; {_RECIPES}/zai-org/Glyph.yaml: 10 B"),
)  # fmt: skip
STATED_BASES = {repo: StatedBase(model, words, source) for repo, model, words, source in _ROWS}
"""Names of repositories in lower case with dashes → the base."""
