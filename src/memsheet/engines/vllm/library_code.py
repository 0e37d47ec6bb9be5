"""How vLLM runs the library's own code for families that it has none for (its "Transformers modeling
backend").
"""

from __future__ import annotations

from memsheet.plan.serving_facts import LibraryCode

_OWN = """
AXK1ForCausalLM AriaForConditionalGeneration BeamForCausalLM Blip2ForConditionalGeneration
Cohere2MoeForCausalLM Cohere2VisionForConditionalGeneration CohereCompassForConditionalGeneration
Cosmos3EdgeForConditionalGeneration DbrxForCausalLM DeepseekV4ForCausalLM DiffusionGemmaForBlockDiffusion
Dots3NoteForCausalLM FlintForCausalLM GPT2LMHeadModel Gemma3ForConditionalGeneration
Glm5NextForConditionalGeneration GlmAsrForConditionalGeneration GlmOcrForConditionalGeneration
Granite4VisionForConditionalGeneration GraniteMoeSWAForCausalLM GraniteSWAForCausalLM HYV4ForCausalLM
HrmTextForCausalLM HyperCLOVAXForCausalLM IQuestCoderForCausalLM InklingForCausalLM
InklingForConditionalGeneration LagunaForCausalLM LlamaForCausalLM LlavaNextVideoForConditionalGeneration
MiniCPM3ForCausalLM MiniCPMOcrForConditionalGeneration MiniCPMV4_6ForConditionalGeneration
MiniCPMV4_7ForConditionalGeneration Molmo2ForConditionalGeneration
MossTranscribeDiarizeForConditionalGeneration MuseGlimmerForConditionalGeneration
MuseSparkForConditionalGeneration NemotronH_Omni_Reasoning_V3 OlmoHybridForCausalLM
PaddleOCRVLForConditionalGeneration QianfanOCRForConditionalGeneration Qwen2AudioForConditionalGeneration
Qwen3ASRForConditionalGeneration Qwen4ExpForCausalLM Step3p7ForConditionalGeneration
VoxtralForConditionalGeneration
"""
OWN = frozenset(_OWN.split())
"""Architectures of families that no reader here knows, for which vLLM has code (v0.33.0
model_executor/models/registry.py; _TRANSFORMERS_SUPPORTED_MODELS at :747 are the library's code).
"""
_LAYOUTS = """
AXK1ForCausalLM HYV4ForCausalLM MiniCPM3ForCausalLM MiniCPMOcrForConditionalGeneration
MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration OlmoHybridForCausalLM
"""
LAYOUTS = frozenset(_LAYOUTS.split())
"""Those that keep latents once a token (v0.33.0 transformers_utils/model_arch_config_convertor.py:294;
model_executor/models/AXK1.py:413, models/hy_v4/nvidia/attention.py:508 beside DeepSeek-V3.2's own cache of
an indexer's keys, :186; of one ``unpacked_latents`` tells what it keeps instead) or a delta net's states of
any (model_executor/models/olmo_hybrid.py:453, minicpmv4_6.py:1530).
"""

LIBRARY_CODE = LibraryCode(
    tag="v0.33.0",
    since=(0, 33, 0),
    own=OWN,
    file="model_executor/models/transformers/base.py",
    line=478,
    layouts=LAYOUTS,
    asks_every_layer=True,  # :638, "does not dispatch through the Transformers attention interface"
)
"""registry.py:1266 _try_resolve_transformers: a model that declares it, or whose file calls the table of
attention functions; base.py:478 recursive_replace cuts by the model's tp_plan, what is in none is kept whole
or cut where projections are joined; :609 _create_attention_instances.
"""
