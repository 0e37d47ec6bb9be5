"""What a step computes in, and what it keeps beside: autocast, a gradient scaler, low precision alone, and
copies in fp32.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.errors import InputError  # noqa: E402
from memsheet.questions.traced import check_runs  # noqa: E402
from memsheet.sheet import Component, Instant  # noqa: E402
from technique_runs import DEEP, at, corpus, falls, gradients, plan_of, predicted, recorded, training  # noqa: E402

PRECISIONS = ("bf16-autocast", "fp16-autocast", "bf16-pure", "bf16-master")
DIGITS = {"bf16-autocast": 2e-2, "fp16-autocast": 3e-3, "bf16-pure": 3e-2, "bf16-master": 3e-2}
"""How far gradients may be from fp32's, as a share of their norm: a few times the format's own rounding, 2⁻⁸
and 2⁻¹¹.
"""
NEAR = 0.001  # of the peak: padded labels and the loss's scalars


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_loss_falls(precision):
    first, last = falls(25, precision=precision)
    assert last < first - 0.4


@pytest.mark.parametrize("precision", ["bf16-autocast", "bf16-pure"])
def test_gradients_are_those_of_fp32_as_far_as_digits_go(precision):
    (plain, _), (low, _) = training(), training(precision=precision)
    expected, found = (gradients(step, corpus(2)) for step in (plain, low))
    for name, gradient in expected.items():
        assert (found[name].float() - gradient).norm() <= DIGITS[precision] * gradient.norm() * 2, name


def test_the_scaler_scales_and_brings_gradients_back():
    """Until the step gradients are 2¹⁶ times too large; what the optimizer gets is right."""
    (plain, _), (scaled, _) = (
        training(optimizer_implementation="loop"),
        training(precision="fp16-autocast", optimizer_implementation="loop"),
    )
    expected, found = (gradients(step, corpus(2)) for step in (plain, scaled))
    assert scaled.scaler.get_scale() == 2**16
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= DIGITS["fp16-autocast"] * gradient.norm(), name


def test_a_step_that_overflowed_is_left_out():
    step, _ = training(precision="fp16-autocast", optimizer_implementation="loop")
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    hook = step.model.lm_head.weight.register_hook(lambda gradient: gradient * float("inf"))
    step(corpus(2))
    assert all(torch.equal(before[name], p) for name, p in step.model.named_parameters())
    assert step.scaler.get_scale() == 2**15
    hook.remove()
    step(corpus(2))
    assert not torch.equal(before["lm_head.weight"], step.model.lm_head.weight)


def test_copies_in_fp32_gather_steps_too_small_for_bf16():
    """A step of 10⁻⁴ is less than half of bf16's spacing at 1, so that bf16 alone never moves from there; its
    copy does.
    """
    (pure, _), (kept, _) = training(precision="bf16-pure"), training(precision="bf16-master")
    for _ in range(30):
        pure(corpus(2))
        kept(corpus(2))
    assert torch.equal(pure.model.model.norm.weight, torch.ones_like(pure.model.model.norm.weight))
    norm = kept.model.model.norm.weight
    assert (kept.optimizer.masters[norm] - 1).abs().max() > 1e-3
    assert torch.equal(norm, kept.optimizer.masters[norm].bfloat16())


@pytest.mark.parametrize("implementation", ["fused", "foreach", "loop"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_instant_is_as_predicted(precision, implementation):
    how = {"config": DEEP, "seq_len": 64, "precision": precision, "optimizer_implementation": implementation}
    found, expected = at(recorded(**how)), at(predicted(**how))
    assert {
        key: size for key, size in found.items() if abs(expected[key] - size) > NEAR * max(found.values())
    } == {}


def test_copies_in_fp32_cost_what_is_predicted():
    how = {"config": DEEP, "seq_len": 64}
    for of in (recorded, predicted):
        pure, kept = (of(**how, precision=precision) for precision in ("bf16-pure", "bf16-master"))
        masters, moments = (
            sum(i.at[Instant.LOAD].value for i in kept.items if i.component is c)
            for c in (Component.MASTER_WEIGHTS, Component.OPTIMIZER_STATES)
        )
        parameters = (
            sum(i.at[Instant.LOAD].value for i in pure.items if i.component is Component.PARAMETERS) // 2
        )
        assert masters == 4 * parameters
        assert abs(moments - 8 * parameters) <= 4 * 57  # a step count a tensor
        assert kept.at(Instant.LOAD).value - pure.at(Instant.LOAD).value == 8 * parameters


def test_the_scaler_is_in_the_sheet():
    for of in (recorded, predicted):
        items = {
            i.path: i.at[Instant.LOAD].value
            for i in of(precision="fp16-autocast").items
            if i.component is Component.OPTIMIZER_STATES
        }
        assert items["grad_scaler"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16-autocast", "bf16-master"])
def test_fake_tensors_say_the_same_as_real_ones(precision):
    for implementation in ("fused", "loop"):
        how = {"precision": precision, "optimizer_implementation": implementation}
        assert at(recorded(**how)) == at(recorded(**how, fake=True))


def test_adapters_keep_no_copies():
    with pytest.raises(InputError, match="adapters train"):
        plan_of(precision="bf16-master", lora_rank=4)


def test_copies_are_refused_where_nobody_keeps_them():
    plan = plan_of(engine="fsdp2", precision="bf16-pure", dp_shard=2)
    from dataclasses import replace

    from memsheet.plan.dtypes import FP32

    with pytest.raises(InputError, match=r"precision\.master_weights"):
        check_runs(replace(plan, precision=replace(plan.precision, master_weights=FP32)))
