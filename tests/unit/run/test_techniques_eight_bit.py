"""Optimizers that keep their moments in eight bits, where their libraries are installed."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.errors import InputError  # noqa: E402
from memsheet.formulas.states.held import torchao_states  # noqa: E402
from memsheet.plan.dtypes import FP32  # noqa: E402
from memsheet.questions.traced import check_runs  # noqa: E402
from memsheet.sheet import Component, Instant  # noqa: E402
from technique_runs import TINY, at, corpus, falls, plan_of, predicted, recorded, training  # noqa: E402

EIGHT = {"optimizer": "adamw_8bit"}
WIDE = {**TINY, "hidden_size": 128, "intermediate_size": 512}


def moments(sheet):
    return sum(
        item.at[Instant.LOAD].value for item in sheet.items if item.component is Component.OPTIMIZER_STATES
    )


def test_without_its_library_it_is_refused_by_name():
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="bitsandbytes"):
            training(**EIGHT)


def test_a_loss_falls():
    pytest.importorskip("bitsandbytes")
    first, last = falls(25, WIDE, **EIGHT)
    assert last < first - 0.4


def test_what_it_saves_is_what_is_predicted():
    """One byte a moment and a scale a block, in tensors of 4096 elements and more that are no embeddings."""
    pytest.importorskip("bitsandbytes")
    real, promised = (moments(of(WIDE)) - moments(of(WIDE, **EIGHT)) for of in (recorded, predicted))
    assert real > 0
    assert real == pytest.approx(promised, rel=0.01)


def test_the_sheet_promises_a_quarter_of_the_moments():
    """Six of seven bytes go where a matrix had eight: embeddings keep theirs."""
    whole, eight = predicted(WIDE), predicted(WIDE, **EIGHT)
    embeddings = 2 * 4 * 256 * 128
    assert at(eight)["forward"] < at(whole)["forward"]
    assert moments(eight) - embeddings < 0.3 * (moments(whole) - embeddings)


AO = {"optimizer": "adamw_8bit", "optimizer_implementation": "torchao"}


def state_bytes(step):
    """What torchao's states hold: codes, a maximum a block, a table."""
    parts = (
        part
        for state in step.optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
        for part in (getattr(state[name], key, None) for key in ("codes", "scale", "qmap"))
    )
    whole = (state[name] for state in step.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    held = [part for part in parts if part is not None] + [
        tensor for tensor in whole if not hasattr(tensor, "codes")
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_torchao_keeps_what_is_predicted(precision):
    """Measured in the optimizer itself: its tensors are inside other tensors. On a GPU its step is compiled,
    here it is not.
    """
    pytest.importorskip("torchao")
    step, losses = training(WIDE, precision=precision, **AO)
    for _ in range(25):
        step(corpus(2))
    assert losses[-1] < losses[0] - 0.4
    assert state_bytes(step) == moments(predicted(WIDE, device="cuda", precision=precision, **AO))


def test_torchao_is_refused_by_name_where_it_is_missing_or_not_seen():
    with pytest.raises(InputError, match=r"optimizer\.implementation"):
        check_runs(plan_of(WIDE, **AO))
    try:
        import torchao  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="torchao"):
            training(**AO)


def test_blocks_that_do_not_divide_stay_as_they_are():
    assert torchao_states(4096, FP32) == 2 * (4096 + 4 * 16 + 1024)
    assert torchao_states(4097, FP32) == 2 * 4 * 4097
    assert torchao_states(4095, FP32) == 2 * 4 * 4095
