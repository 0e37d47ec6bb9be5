"""Optimizers that keep their moments in eight bits, where their libraries are installed."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.errors import InputError  # noqa: E402
from memsheet.sheet import Component, Instant  # noqa: E402
from technique_runs import TINY, at, falls, predicted, recorded, training  # noqa: E402

EIGHT = {"optimizer": "adamw_8bit"}
WIDE = {**TINY, "hidden_size": 128, "intermediate_size": 512}


def moments(sheet):
    return sum(item.at[Instant.LOAD].value for item in sheet.items if item.component is Component.OPTIMIZER_STATES)


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
