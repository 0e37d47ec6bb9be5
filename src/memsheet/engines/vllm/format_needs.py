"""What vLLM asks of a card before it reads weights of a format: ``get_min_capability`` and
``get_supported_act_dtypes`` of each class of model_executor/layers/quantization, which config/vllm.py,
_get_quantization_config, compares with the card and the model's dtype (v0.6.4.post1, v0.8.5, v0.9.2, v0.10.2,
v0.11.0, v0.12.0, v0.13.0, v0.14.0, v0.20.2, v0.30.0 and v0.33.0 were read); of compressed-tensors, those of
the scheme that is least (compressed_tensors/schemes).
"""

from __future__ import annotations

from memsheet.plan.dtypes import BF16, FP16
from memsheet.plan.server_limits import ASKED, FormatNeeds

HALVES = (FP16, BF16)
EIGHT = ("fp8", "fp8-block")
OWN = ("fp8", "fbgemm_fp8", "modelopt", ASKED)
PACKED = ("compressed-tensors",)
FORMAT_NEEDS = (
    FormatNeeds(weights=("awq-int4",), methods=("awq", ASKED), units=(7, 5), dtypes=HALVES),  # awq.py, auto_awq.py
    FormatNeeds(weights=("gptq-int4", "gptq-int8"), methods=("gptq", ASKED), dtypes=HALVES),  # gptq.py, gptq_marlin.py, auto_gptq.py
    FormatNeeds(weights=EIGHT, units=(7, 5)),  # fp8.py, online/base.py, fbgemm_fp8.py, schemes/compressed_tensors_w8a16_fp8.py
    FormatNeeds(weights=EIGHT, units=(8, 0), before=(0, 14, 0)),
    FormatNeeds(weights=EIGHT, methods=PACKED, units=(8, 0), before=(0, 14, 1)),
    FormatNeeds(weights=EIGHT, methods=OWN, dtypes=HALVES),
    FormatNeeds(weights=EIGHT, methods=("modelopt", "fbgemm_fp8"), units=(8, 0)),  # modelopt.py, ModelOptFp8Config
    FormatNeeds(weights=EIGHT, methods=("modelopt",), units=(8, 9), before=(0, 20, 3)),
    FormatNeeds(weights=("mxfp4",), methods=("mxfp4", ASKED), units=(8, 0), dtypes=(BF16,)),  # mxfp4.py
    FormatNeeds(weights=("nvfp4",), methods=("modelopt", *PACKED), units=(7, 5)),  # ModelOptNvFp4Config, schemes/compressed_tensors_w4a4_nvfp4.py
    FormatNeeds(weights=("nvfp4",), methods=("modelopt", *PACKED), units=(8, 0), before=(0, 14, 0)),
    FormatNeeds(weights=("nvfp4",), methods=("modelopt",), dtypes=HALVES),
    FormatNeeds(weights=("nvfp4",), methods=("modelopt",), units=(10, 0), before=(0, 8, 6)),
    FormatNeeds(weights=("mxfp8",), methods=("modelopt",), units=(8, 0), dtypes=(BF16,)),  # ModelOptMxFp8Config
    FormatNeeds(weights=("int4", "int8"), methods=PACKED, units=(7, 5)),  # schemes/compressed_tensors_wNa16.py, _w8a8_int8.py
    FormatNeeds(weights=("int4",), methods=PACKED, units=(8, 0), before=(0, 12, 0)),
)  # fmt: skip
"""Of a release between two that were read the weaker need is taken, so that nothing is refused that may
start.
"""
