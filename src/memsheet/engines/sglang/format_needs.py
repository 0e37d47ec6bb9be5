"""What SGLang asks of a card before it reads weights of a format: ``get_min_capability`` and
``get_supported_act_dtypes`` of each class of srt/layers/quantization, which model_loader/loader.py,
_get_quantization_config, compares with the card and the model's dtype (v0.5.12, v0.5.21 and v0.5.23 were
read); of compressed-tensors, those of the scheme that is least (compressed_tensors/schemes).
"""

from __future__ import annotations

from memsheet.plan.dtypes import BF16, FP16
from memsheet.plan.server_limits import ASKED, FormatNeeds

HALVES = (FP16, BF16)
FORMAT_NEEDS = (
    FormatNeeds(weights=("awq-int4",), methods=("awq", ASKED), units=(7, 5), dtypes=HALVES),  # awq/awq.py
    FormatNeeds(weights=("gptq-int4", "gptq-int8"), methods=("gptq", ASKED), dtypes=HALVES),  # gptq/gptq.py
    FormatNeeds(weights=("fp8", "fp8-block"), units=(8, 0), dtypes=HALVES),  # fp8.py, schemes/compressed_tensors_w8a16_fp8.py
    FormatNeeds(weights=("fp8", "fp8-block"), methods=("modelopt",), units=(8, 9)),  # modelopt_quant.py, ModelOptFp8Config
    FormatNeeds(weights=("mxfp4",), methods=("mxfp4", ASKED), units=(8, 0), dtypes=HALVES),  # mxfp4.py
    FormatNeeds(weights=("nvfp4",), methods=("modelopt",), units=(8, 0), dtypes=HALVES),  # ModelOptFp4Config
    FormatNeeds(weights=("nvfp4",), methods=("modelopt",), units=(10, 0), before=(0, 5, 13)),
    FormatNeeds(weights=("int4", "int8"), methods=("compressed-tensors",), units=(8, 0), dtypes=HALVES),  # schemes/compressed_tensors_wNa16.py, _w8a8_int8.py
)  # fmt: skip
