"""ms-swift trains the library's models as they were in transformers 4.36: their losses shift logits that are
raised to fp32.
"""

from __future__ import annotations

from memsheet.formulas.model_code.transformers import code as transformers
from memsheet.formulas.model_code.transformers.first_qwen import SHIFTED
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan


def swift_spec(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with the loss of its time: Qwen's first code has its own
    (formulas/model_code/transformers/first_qwen.py).
    """
    found = transformers.CODE.built(spec, plan)
    return replace(found, head=replace(found.head, kind=SHIFTED)) if found.head.kind == "causal_lm" else found


CODE = replace(transformers.CODE, built=swift_spec)
