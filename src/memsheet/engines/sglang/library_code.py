"""How SGLang runs the library's own code for families that it has none for (its "Transformers backend")."""

from __future__ import annotations

from memsheet.plan.serving_facts import LibraryCode

_OWN = """
BeamForCausalLM Cohere2MoeForCausalLM Cohere2VisionForConditionalGeneration
Cosmos3EdgeForConditionalGeneration DbrxForCausalLM DeepseekV4ForCausalLM DiffusionGemmaForBlockDiffusion
GPT2LMHeadModel Gemma3ForConditionalGeneration Gemma4UnifiedAssistantForCausalLM
Glm5NextForConditionalGeneration GlmAsrForConditionalGeneration GlmOcrForConditionalGeneration
GraniteMoeSWAForCausalLM GraniteSWAForCausalLM HYV4ForCausalLM HrmTextForCausalLM IQuestCoderForCausalLM
InklingForConditionalGeneration LagunaForCausalLM LlamaForCausalLM MellumForCausalLM MiniCPM3ForCausalLM
MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration MuseGlimmerForConditionalGeneration
MuseSparkForConditionalGeneration NemotronH_Omni_Reasoning_V3 PaddleOCRVLForConditionalGeneration
PersimmonForCausalLM Qwen2AudioForConditionalGeneration Qwen3ASRForConditionalGeneration
Step3p7ForConditionalGeneration VoxtralForConditionalGeneration ZayaForCausalLM
"""
OWN = frozenset(_OWN.split())
"""Architectures of families that no reader here knows, for which SGLang has code (v0.5.23 srt/models, the
EntryClass of each file).
"""
_PLAN_WORDS = """
colwise colwise_rep rowwise rowwise_rep replicate colwiseparallel packed_colwise local_colwise
rowwiseparallel packed_rowwise local_rowwise local_packed_rowwise embedding_rowwise isolated local
replicated_with_grad_allreduce moe_tp_experts
"""
PLAN_WORDS = frozenset(_PLAN_WORDS.split())
"""v0.5.23 srt/models/transformers.py:228 _normalize_tp_style, which raises for another."""

LIBRARY_CODE = LibraryCode(
    tag="v0.5.23",
    since=(0, 5, 23),
    own=OWN,
    file="srt/models/transformers.py",
    line=760,
    asks_declared=True,
    layouts=frozenset({"MiniCPM3ForCausalLM"}),  # configs/model_config.py:1443, models/minicpm3.py:127
    plan_words=PLAN_WORDS,
    repeats_heads=False,
)
"""model_loader/utils.py:182: a model must declare it; srt/models/transformers.py:760 recursive_replace cuts
by the model's tp_plan and raises on several ranks without one; :904 _create_attention_instances gives every
layer the heads of the config, divided by the ranks.
"""
