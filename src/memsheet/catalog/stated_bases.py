"""Models whose publisher, or a public repository, states which bundled model they were made of without a
change of its shapes.
"""

from __future__ import annotations

from typing import NamedTuple

from memsheet.catalog.tuned_names import REWARD_HEAD


class StatedBase(NamedTuple):
    """``words``: behind the name, what it is and what differs; ``source``: who says so."""

    model: str
    words: str
    source: str


_RECIPES = "vllm-project/recipes at 8959cf6, models"
_CARD = "its model card"
_QWEN_VL = "QwenLM/Qwen3-VL-Embedding 8ce3aab README: built upon the Qwen3-VL of its size"
_UNSLOTH = "unslothai/unsloth 015bdef unsloth/models/mapper.py: of the released model that it names"
_LENGTH = "made for another length"
_ROWS = (
    ("agentica-org/deepcoder-14b-preview", "qwen2.5-14b", "is Qwen2.5-14B distilled and tuned", "agentica-project/rllm 874daa4 scripts/deepcoder/train/deepcoder_14b_coding_16k.sh:23: DeepSeek-R1-Distill-Qwen-14B"),
    ("agentica-org/deepscaler-1.5b-preview", "deepseek-r1-distill-qwen-1.5b", "is DeepSeek-R1-Distill-Qwen-1.5B tuned", "agentica-project/rllm 874daa4 scripts/deepscaler/README.md:13: MODEL_PATH deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
    ("allenai/llama-3.1-tulu-3-70b", "llama-3.1-70b", "is Llama 3.1 70B tuned", "allenai/open-instruct e6c3044 docs/tulu3.md: model_name_or_path meta-llama/Llama-3.1-70B"),
    ("allenai/llama-3.1-tulu-3-8b", "llama-3.1-8b", "is Llama 3.1 8B tuned", "allenai/open-instruct e6c3044 docs/tulu3.md: model_name_or_path meta-llama/Llama-3.1-8B"),
    ("allenai/llama-3.1-tulu-3-8b-rm", "llama-3.1-8b", f"is Llama 3.1 8B tuned; {REWARD_HEAD}", "allenai/open-instruct e6c3044 docs/tulu3.md:290: model_name_or_path allenai/Llama-3.1-Tulu-3-8B-SFT"),
    ("allenai/olmo-3.2-hybrid-7b", "olmo-hybrid-7b", "is OLMo Hybrid 7B tuned", "allenai/open-instruct e6c3044 scripts/train/olmo-hybrid/7b_instruct_dpo.sh and open_instruct/olmo_core_utils.py:374, olmo3_hybrid_7B"),
    ("allenai/olmo-hybrid-instruct-dpo-7b", "olmo-hybrid-7b", "is OLMo Hybrid 7B tuned", "allenai/open-instruct e6c3044 scripts/train/olmo-hybrid/7b_instruct_dpo.sh and open_instruct/olmo_core_utils.py:374, olmo3_hybrid_7B"),
    ("allenai/olmo-hybrid-instruct-sft-7b", "olmo-hybrid-7b", "is OLMo Hybrid 7B tuned", "allenai/open-instruct e6c3044 open_instruct/olmo_core_utils.py:374: olmo3_hybrid_7B"),
    ("allenai/olmo-hybrid-think-sft-7b", "olmo-hybrid-7b", "is OLMo Hybrid 7B tuned", "allenai/open-instruct e6c3044 open_instruct/olmo_core_utils.py:375: olmo3_hybrid_7B"),
    ("allenai/tulu-2-70b", "llama-2-70b", "is Llama 2 70B tuned", "allenai/open-instruct e6c3044 configs/train_configs/sft/tulu2_70b.yaml: meta-llama/Llama-2-70b"),
    ("allenai/tulu-2-7b", "llama-2-7b", "is Llama 2 7B tuned", "allenai/open-instruct e6c3044 configs/train_configs/sft/tulu2_7b.yaml: meta-llama/Llama-2-7b"),
    ("allenai/tulu-2-dpo-70b", "llama-2-70b", "is Llama 2 70B tuned", "allenai/open-instruct e6c3044 configs/train_configs/sft/tulu2_70b.yaml; its model card: a fine-tuned version of Llama 2"),
    ("allenai/tulu-2-dpo-7b", "llama-2-7b", "is Llama 2 7B tuned", "allenai/open-instruct e6c3044 configs/train_configs/dpo/default.yaml: allenai/tulu-2-7b, of sft/tulu2_7b.yaml"),
    ("deepseek-ai/deepseek-r1-0528-qwen3-8b", "qwen3-8b", "is Qwen3-8B distilled, of the same architecture", f"{_CARD}: the architecture is identical to that of Qwen3-8B"),
    ("deepseek-ai/deepseek-r1-distill-qwen-14b", "qwen2.5-14b", "is Qwen2.5-14B distilled", "deepseek-ai/DeepSeek-R1 0cf7856 README, table of distilled models"),
    ("deepseek-ai/deepseek-r1-distill-qwen-32b", "qwen2.5-32b", "is Qwen2.5-32B distilled", "deepseek-ai/DeepSeek-R1 0cf7856 README, table of distilled models"),
    ("deepseek-ai/deepseek-r1-distill-qwen-7b", "qwen2.5-math-7b", f"is Qwen2.5-Math-7B distilled, {_LENGTH}", "deepseek-ai/DeepSeek-R1 0cf7856 README, table of distilled models"),
    ("deepseek-ai/deepseek-v2.5", "deepseek-v2", "is DeepSeek-V2-Chat and Coder-V2-Instruct as one", f"{_CARD}: combines DeepSeek-V2-Chat and DeepSeek-Coder-V2-Instruct"),
    ("huggyllama/llama-13b", "open-llama-13b", "is LLaMA-13B, whose shapes OpenLLaMA's are", "openlm-research/open_llama 6e7f73e README: a drop-in replacement of LLaMA"),
    ("huggyllama/llama-7b", "open-llama-7b", "is LLaMA-7B, whose shapes OpenLLaMA's are", "openlm-research/open_llama 6e7f73e README: a drop-in replacement of LLaMA"),
    ("ibm-granite/granite-3.2-2b-instruct", "granite-3.1-2b", "is Granite 3.1 2B tuned", f"{_CARD}: built on top of Granite-3.1-2B-Instruct"),
    ("ibm-granite/granite-3.2-8b-instruct", "granite-3.1-8b", "is Granite 3.1 8B tuned", f"{_CARD}: built on top of Granite-3.1-8B-Instruct"),
    ("jinaai/jina-embeddings-v5-text-small-classification", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("jinaai/jina-embeddings-v5-text-small-clustering", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("jinaai/jina-embeddings-v5-text-small-retrieval", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("jinaai/jina-embeddings-v5-text-small-text-matching", "qwen3-0.6b", "is Qwen3-0.6B with an adapter merged", f"{_RECIPES}/jinaai/jina-embeddings-v5-text-small.yaml"),
    ("katanemo/plano-orchestrator-4b", "qwen3-4b-2507", "is Qwen3-4B-Instruct-2507 tuned", f"{_CARD}: base_model Qwen/Qwen3-4B-Instruct-2507"),
    ("liquidai/lfm2.5-1.2b-jp-202606", "lfm2.5-1.2b", "is LFM2.5 1.2B tuned", f"{_RECIPES}/LiquidAI/LFM2.5-1.2B-JP-202606.yaml: Lfm2ForCausalLM, 1.2 B, 32K"),
    ("mindlab-research/macaron-v1-coding-venti", "glm-5.2", "is GLM-5.2 with an adapter merged", f"{_RECIPES}/mindlab-research/Macaron-V1-Coding-Venti.yaml"),
    ("minimaxai/minimax-m3", "minimax-m3-text", "is accounted without its tower for pictures, 0.87 of 427 B", f"{_RECIPES}/MiniMaxAI/MiniMax-M3.yaml; the tower of MiniMaxM3VLVisionConfig, transformers 5.23.0"),
    ("mistralai/devstral-small-2505", "mistral-small-3.1-24b", "is Mistral Small 3.1 tuned; the tower for pictures is accounted and it has none", f"{_CARD}: finetuned from Mistral-Small-3.1, its vision encoder removed"),
    ("mistralai/devstral-small-2507", "mistral-small-3.1-24b", "is Mistral Small 3.1 tuned; the tower for pictures is accounted and it has none", f"{_CARD}: finetuned from Mistral-Small-3.1, its vision encoder removed"),
    ("mistralai/magistral-small-2506", "mistral-small-3.1-24b", "is Mistral Small 3.1 tuned; the tower for pictures is accounted and it has none", f"{_CARD}: builds upon Mistral Small 3.1"),
    ("mistralai/magistral-small-2507", "mistral-small-3.1-24b", "is Mistral Small 3.1 tuned; the tower for pictures is accounted and it has none", f"{_CARD}: builds upon Mistral Small 3.1"),
    ("mistralai/magistral-small-2509", "mistral-small-3.1-24b", "is Mistral Small 3.2 tuned", f"{_CARD}: builds upon Mistral Small 3.2"),
    ("neuralmagic/sparse-llama-3.1-8b-2of4", "llama-3.1-8b", "is Llama 3.1 8B with half its weights zero, accounted as if all were kept", f"{_CARD}: 2:4 sparse version of Llama-3.1-8B"),
    ("nvidia/llama-3.1-nemotron-70b", "llama-3.1-70b", "is Llama 3.1 70B tuned", "Lightning-AI/litgpt 2685705 litgpt/config.py: nvidia/Llama-3.1-Nemotron-70B-Instruct-HF, as Llama 3.1 70B"),
    ("openai/gpt-oss-safeguard-120b", "gpt-oss-120b", "is gpt-oss-120b tuned", f"{_CARD}: built upon gpt-oss"),
    ("openai/gpt-oss-safeguard-20b", "gpt-oss-20b", "is gpt-oss-20b tuned", f"{_CARD}: built upon gpt-oss"),
    ("openlm-research/open-llama-3b-v2", "open-llama-3b", "is OpenLLaMA's 3B on other data", "openlm-research/open_llama 6e7f73e README: v2 is the same model on another mixture"),
    ("openlm-research/open-llama-7b-v2", "open-llama-7b", "is OpenLLaMA's 7B on other data", "openlm-research/open_llama 6e7f73e README: v2 is the same model on another mixture"),
    ("qwen/qwen3-reranker-4b", "qwen3-4b", "is Qwen3-4B tuned, accounted with 267 words more", "QwenLM/Qwen3-Embedding f4ad0c4 README: built upon the Qwen3 series, 4B, 36 layers; words as of its siblings"),
    ("qwen/qwen3-vl-embedding-2b", "qwen3-vl-2b", "is Qwen3-VL-2B tuned", _QWEN_VL),
    ("qwen/qwen3-vl-embedding-8b", "qwen3-vl-8b", "is Qwen3-VL-8B tuned", _QWEN_VL),
    ("qwen/qwen3-vl-reranker-2b", "qwen3-vl-2b", "is Qwen3-VL-2B tuned", _QWEN_VL),
    ("qwen/qwen3-vl-reranker-8b", "qwen3-vl-8b", "is Qwen3-VL-8B tuned", _QWEN_VL),
    ("qwen/qwen3guard-gen-0.6b", "qwen3-0.6b", "is Qwen3-0.6B tuned", "QwenLM/Qwen3Guard 6a52eca README: built upon Qwen3, sizes 0.6B, 4B and 8B"),
    ("qwen/qwen3guard-gen-4b", "qwen3-4b", "is Qwen3-4B tuned", "QwenLM/Qwen3Guard 6a52eca README: built upon Qwen3, sizes 0.6B, 4B and 8B"),
    ("qwen/qwen3guard-gen-8b", "qwen3-8b", "is Qwen3-8B tuned", "QwenLM/Qwen3Guard 6a52eca README: built upon Qwen3, sizes 0.6B, 4B and 8B"),
    ("sergiopaniego/grpo-biogrid-qwen-3g-1.7b", "qwen3-1.7b", "is Qwen3-1.7B tuned", "huggingface/trl f2cd577 examples/scripts/grpo_agent.py:26: model_name_or_path Qwen/Qwen3-1.7B"),
    ("sfairxc/fsfairx-llama3-rm-v0.1", "llama-3-8b", f"is Llama 3 8B tuned; {REWARD_HEAD}", "RLHFlow/RLHF-Reward-Modeling fc39179 README.md:60: base model Llama-3 8B"),
    ("tinyllama/tinyllama-v1.1", "tinyllama-1.1b", "is TinyLlama 1.1B on other data", "jzhang38/TinyLlama README: v1.1, the same architecture"),
    ("unsloth/tinyllama", "tinyllama-1.1b", "is TinyLlama 1.1B", _UNSLOTH),
    ("unsloth/zephyr-sft", "mistral-7b", "is Mistral 7B tuned", _UNSLOTH),
    ("xiaomimimo/mimo-v2.5", "mimo-v2.5-text", "is accounted without its towers for pictures and sound, 0.99 of 310.8 B", "gogongxt/python scripts/models/mimo_v2.5.md at 6910700: every tensor of its checkpoint"),
    ("zai-org/glm-4.6", "glm-4.7", "is accounted as GLM-4.7, as long and as large", f"{_RECIPES}/zai-org/GLM-4.6.yaml: 357 B, 202,752 positions, GLM-4.5's architecture"),
    ("zai-org/glm-4.6v", "glm-4.5v-106b-a12b", f"is accounted as GLM-4.5V, as large, {_LENGTH}", f"{_RECIPES}/zai-org/GLM-4.6V.yaml: 107 B, 128K"),
    ("zai-org/glm-4.6v-flash", "glm-4.1v-9b", f"is accounted as GLM-4.1V-9B, of the same class and size, {_LENGTH}", f"{_RECIPES}/zai-org/GLM-GA.yaml: Glm4vForConditionalGeneration, about 10 B"),
    ("zai-org/glm-ga", "glm-4.1v-9b", f"is accounted as GLM-4.1V-9B, of the same class and size, {_LENGTH}", f"{_RECIPES}/zai-org/GLM-GA.yaml: on GLM-4.6V-Flash, Glm4vForConditionalGeneration, about 10 B"),
    ("zai-org/glyph", "glm-4.1v-9b", f"is GLM-4.1V-9B tuned, {_LENGTH}", f"thu-coai/Glyph README: from GLM-4.1V-9B-Base; {_RECIPES}/zai-org/Glyph.yaml: 10 B"),
)  # fmt: skip
STATED_BASES = {repo: StatedBase(model, words, source) for repo, model, words, source in _ROWS}
"""Names of repositories in lower case with dashes → the base."""
