"""Adapters that a transformers model serves, traced: peft's own layers on fake tensors against what is
predicted.
"""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from memsheet.questions import accounted
from memsheet.questions.traced import Options, trace_with_timelines

pytestmark = pytest.mark.usefixtures("warm_children")
ADAPTERS = (
    {"adapter": {"rank": 8}},
    {"adapter": {"rank": 16, "targets": ["all-linear"]}, "serving": {"max_loras": 3}},
)


def plan(more: dict[str, Any]) -> dict[str, Any]:
    serving = {"prompt_tokens": 256, "max_model_len": 512, **more.get("serving", {})}
    return {"task": "infer", "engine": "transformers", **more, "serving": serving}


def instants(more: dict[str, Any], *, traced: bool) -> dict[str, int]:
    answer = (
        trace_with_timelines("llama-tiny", Options(), plan=plan(more))[0]
        if traced
        else accounted.infer("llama-tiny", plan=plan(more))
    )
    sheet = answer.sheets[0]
    return {when.value: int(sheet.at(when).value) for when in sheet.instants}


@pytest.mark.parametrize(
    "more",
    [pytest.param(more, marks=[pytest.mark.slow] if place else []) for place, more in enumerate(ADAPTERS)],
)
def test_adapters_add_to_every_instant_what_the_real_layers_add(more: dict[str, Any]) -> None:
    """The low-rank pairs at load, to the byte; and with the branch beside each layer's result, what prompts
    and tokens take.
    """
    real, ours = (
        {key: size - plain[key] for key, size in instants(more, traced=traced).items()}
        for traced in (True, False)
        for plain in [instants({}, traced=traced)]
    )
    assert real["load"] == ours["load"] > 0
    assert all(abs(real[when] - ours[when]) <= real["load"] // 100 for when in real), (real, ours)
