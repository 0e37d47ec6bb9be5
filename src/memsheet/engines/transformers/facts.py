"""transformers on one GPU, replicated over several by DistributedDataParallel; generation with its own
caches.
"""

from __future__ import annotations

from memsheet.engines.shared.whole_tensors import WHOLE_TENSORS
from memsheet.engines.transformers.served_since import RELEASE_FORM, SERVED_SINCE
from memsheet.late import late_functions
from memsheet.plan.defaults import SERVED_ADAPTERS
from memsheet.plan.engine import Engine, Runner, Sharding
from memsheet.plan.model import Role
from memsheet.plan.plan import (
    AdapterKind,
    AttentionKind,
    Implementation,
    Loss,
    OptimizerName,
    RecomputeMode,
    Schedule,
    SpeculativeMethod,
)
from memsheet.plan.server_limits import ServerLimits
from memsheet.plan.serving_facts import ServingFacts, Unserved
from memsheet.plan.speculative import Drafting
from memsheet.references import TORCH_DDP, TORCH_OPTIM, TRANSFORMERS
from memsheet.sheet import Cited

with late_functions(__name__):
    from memsheet.engines.transformers.releases import wrote_scores

_SPEAKS = Unserved((0, 0, 0), "loads with what speaks, of which the thinker alone is read", "--engine vllm")
_NOWHERE = Unserved((0, 0, 0), "no release of the library has code for")
UNSERVED = {
    "bailing_moe": _NOWHERE,
    "bailing_moe_v2": _NOWHERE,
    "longcat_flash": Unserved((0, 0, 0), "has gates for identity experts that are not counted"),
    "qwen3_omni_moe": _SPEAKS,
    "qwen2_5_omni": _SPEAKS,
}
"""modeling_longcat_flash.py, LongcatFlashExperts: ``total_experts`` of them; modeling_qwen3_omni_moe.py,
Qwen3OmniMoeForConditionalGeneration: talker and code2wav unless its config says otherwise, as
Qwen2_5OmniForConditionalGeneration does its talker and token2wav.
"""
ENGINE = Engine(
    name="transformers",
    tested="5.23.0 (torch 2.13.0)",
    tasks=("train", "infer"),
    axes=("dp_replicate",),
    serving_axes=("tp", "pp"),
    cache_dtypes=("fp8", "int8"),  # cache_utils.py:2113 QuantizedCache: of backends fp8 and hqq
    real_axes=("dp_shard", "tp", "pp", "vpp"),
    real_schedules=(Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    zero=(0,),
    real_zero=(1,),
    default_zero=0,
    replays=True,
    sharding=Sharding.REPLICATED,
    default_precision="bf16-autocast",
    precisions=("fp32", "bf16-autocast", "fp16-autocast", "bf16-master", "bf16-pure"),
    models=frozenset({"adapter.full_modules", "image_tokens", *SERVED_ADAPTERS} - {"serving.max_cpu_loras"}),
    adapters=(
        AdapterKind.LORA,
        AdapterKind.DORA,
        AdapterKind.LORA_FA,
        AdapterKind.IA3,
        AdapterKind.VERA,
        AdapterKind.ADALORA,
        AdapterKind.OFT,
        AdapterKind.LOHA,
        AdapterKind.LOKR,
        AdapterKind.LN_TUNING,
        AdapterKind.PROMPT_TUNING,
        AdapterKind.P_TUNING,
        AdapterKind.PREFIX_TUNING,
        AdapterKind.PROJECTED_PREFIX,
    ),
    takes_remainder=True,
    steps_in_backward=True,
    autocast=True,
    trains_towers=True,
    trains_other_heads=True,
    offloads_unrecomputed=True,
    older_releases=True,
    attention=(AttentionKind.SDPA, AttentionKind.EAGER, AttentionKind.FLASH, AttentionKind.XFORMERS),
    usual_attention=lambda kinds, version: (
        AttentionKind.EAGER if version and wrote_scores(kinds, version) else AttentionKind.SDPA
    ),
    losses=(Loss.PLAIN, Loss.FUSED, Loss.CHUNKED),
    recompute=(RecomputeMode.NONE, RecomputeMode.SELECTIVE, RecomputeMode.FULL),
    optimizers=tuple(OptimizerName),
    default_implementation=Implementation.FUSED,
    offload=("activations",),
    implementations=WHOLE_TENSORS,
    limits=ServerLimits(
        library_modules=True,
        own_compute=lambda plan: (
            plan.serving.phase == "load"
        ),  # modules compute in the dtype that they are loaded in
        unpacks_gguf=True,  # modeling_gguf_pytorch_utils.py
    ),
    drafting=Drafting(
        methods=(((0, 0), (SpeculativeMethod.DRAFT, SpeculativeMethod.NGRAM)),),
        axes=(),
        sequences=1,  # generation/utils.py _assisted_decoding
    ),
    whole_roles=frozenset({Role.EMBEDDING}),
    whole_latent=True,
    # its own code starts about 50 operations a layer (its tape)
    serving=ServingFacts(
        unserved=UNSERVED,
        served_since=SERVED_SINCE,
        trains_since=True,
        release_form=RELEASE_FORM,
        dequantizes_below={
            "fp8": (8, 9),
            "mxfp4": (7, 5),
        },  # quantizer_finegrained_fp8.py, quantizer_mxfp4.py
        layer_calls=50,
        planned=True,
        fewer_bits=("int8", "nf4"),
    ),
    splits_experts_over_tp=True,
    runner=Runner.WHOLE_MODULE,
    searched=3,
    spreads_layers=True,
    prefill_unknown=True,
    evidence={
        "activations": Cited(TRANSFORMERS, "modeling files, operation by operation"),
        "optimizer": Cited(TORCH_OPTIM),
        "buckets": Cited(TORCH_DDP, "one bucket view a gradient"),
    },
)
