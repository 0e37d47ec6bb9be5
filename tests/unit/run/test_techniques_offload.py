"""Activations that wait for backward in host memory. On a processor that is the same memory, so what it saves
is seen on fake cuda.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.account import account_rank  # noqa: E402
from memsheet.errors import InputError  # noqa: E402
from memsheet.questions.traced import check_runs  # noqa: E402
from memsheet.readers.hf_config import read_hf_config  # noqa: E402
from memsheet.run import offload  # noqa: E402
from memsheet.sheet import Instant  # noqa: E402
from technique_runs import (  # noqa: E402
    DEEP,
    DEEPER,
    TINY,
    at,
    corpus,
    falls,
    gradients,
    plan_of,
    predicted,
    recorded,
    training,
)

MOVED = {"offload": "activations"}
CUDA = {"device": "cuda", "attention": "sdpa", "seq_len": 128, "config": DEEP}
NEAR = 0.002  # of the peak: padded labels, which count for more beside so little
CASES = (
    {}, {"precision": "bf16-pure"}, {"precision": "bf16-autocast"}, {"attention": "eager"}, {"recompute": "full", "precision": "bf16-pure", "config": DEEPER},
    {"recompute_every": 3, "precision": "bf16-pure"}, {"loss": "chunked"}, {"global_batch": 4}, {"optimizer_in_backward": True},
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"recompute": "full"}, {"recompute_every": 2}, {"loss": "fused"}, {"precision": "bf16-autocast"}],
    ids=str,
)
def test_gradients_are_those_of_activations_that_stay(options):
    """They come back as they were: bit by bit in fp32. Products in bf16 may take another kernel for a copy
    that lies otherwise in memory, as some processors' do, so there each gradient is within a rounding of its
    largest value.
    """
    (plain, _), (moved, _) = training(**options), training(**options, **MOVED)
    expected, found = (gradients(step, corpus(2)) for step in (plain, moved))
    assert expected.keys() == found.keys()
    rounding = torch.finfo(torch.bfloat16).eps if "bf16" in options.get("precision", "") else 0
    assert all(
        (expected[name] - found[name]).abs().max() <= rounding * expected[name].abs().max()
        for name in expected
    )


def test_a_loss_falls():
    first, last = falls(20, **MOVED)
    assert last < first - 0.4


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_instant_is_as_predicted(case):
    how = {**CUDA, **MOVED, **case}
    found, expected = at(recorded(**how, fake=True)), at(predicted(**how))
    assert {
        key: size for key, size in found.items() if abs(expected[key] - size) > NEAR * max(found.values())
    } == {}


@pytest.mark.parametrize("case", [{}, {"precision": "bf16-autocast"}], ids=str)
def test_what_it_saves_is_what_is_predicted(case):
    how = {**CUDA, **case}
    plain = recorded(**how, fake=True).peak.value
    saved = plain - recorded(**how, **MOVED, fake=True).peak.value
    promised = predicted(**how).peak.value - predicted(**how, **MOVED).peak.value
    assert saved > 0.4 * plain
    assert abs(saved - promised) <= NEAR * plain


def on_host(monkeypatch, config, **options):
    """Bytes that a real forward copies to the host."""
    copied = []

    def noted(tensor):
        copied.append(tensor.numel() * tensor.element_size())
        return tensor.clone()

    monkeypatch.setattr(offload, "_to_host", noted)
    step, _ = training(config, **options, **MOVED)
    step()
    return sum(copied)


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-pure"}, {"recompute": "full"}], ids=str)
def test_the_host_holds_what_is_predicted(monkeypatch, options):
    """Eager attention, whose operations are the same everywhere. Tokens and labels that backward reads are
    copied too.
    """
    how = {"seq_len": 64, **options}
    found = on_host(monkeypatch, DEEP, **how)
    expected = account_rank(read_hf_config(DEEP, name="tiny"), plan_of(DEEP, **how, **MOVED)).host_bytes
    indices = 2 * 2 * 64 * 8
    assert found == pytest.approx(expected + indices, abs=64)


def test_parameters_stay_where_they_are(monkeypatch):
    """Fewer bytes than the weights alone have."""
    wide = {**TINY, "intermediate_size": 4096}
    assert on_host(monkeypatch, wide, seq_len=2, microbatch=1) < 4 * 3 * 64 * 4096


def test_on_a_processor_nothing_is_predicted():
    with pytest.raises(InputError, match="one memory"):
        predicted(**MOVED)
    real = recorded(seq_len=64).at(Instant.LOSS).value
    assert recorded(seq_len=64, **MOVED).at(Instant.LOSS).value > real  # each saves its own copy


def test_over_ranks_it_is_refused_by_name():
    with pytest.raises(InputError, match=r"offload\.activations"):
        check_runs(plan_of(engine="transformers", dp_replicate=2, **MOVED))
