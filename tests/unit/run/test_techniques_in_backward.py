"""The optimizer's step inside backward: no gradient outlives its own parameter's step."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import memsheet  # noqa: E402
from memsheet.errors import InputError  # noqa: E402
from memsheet.sheet import Component, Instant  # noqa: E402
from technique_runs import DEEP, TINY, at, corpus, falls, plan_of, predicted, recorded, training  # noqa: E402

IMPLEMENTATIONS = ("fused", "foreach", "loop")
TIED = {**DEEP, "vocab_size": 2000, "tie_word_embeddings": True}
NEAR = 0.002  # of the peak: padded labels, step counts


@pytest.mark.parametrize(
    "config", [TINY, {**TINY, "tie_word_embeddings": True}], ids=["own head", "tied head"]
)
@pytest.mark.parametrize(
    "options",
    [{"optimizer_implementation": name} for name in IMPLEMENTATIONS] + [{"optimizer": "sgd_momentum"}],
    ids=str,
)
def test_parameters_are_those_of_a_step_behind_backward(options, config):
    """Bit by bit, after several steps: the same gradients, the same arithmetic."""
    (plain, expected), (inside, found) = (
        training(config, **options),
        training(config, **options, optimizer_in_backward=True),
    )
    for _ in range(4):
        plain(corpus(2))
        inside(corpus(2))
    assert found == expected
    for one, other in zip(plain.model.parameters(), inside.model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert other.grad is None


@pytest.mark.parametrize(
    "options", [{}, {"recompute": "full"}, {"precision": "bf16-autocast", "loss": "chunked"}], ids=str
)
def test_a_loss_falls(options):
    first, last = falls(25, **options, optimizer_in_backward=True)
    assert last < first - 0.4


CASES = (
    {}, {"config": TIED}, {"config": TIED, "precision": "bf16-autocast"}, {"recompute": "full", "precision": "bf16-pure"}, {"loss": "fused"},
    {"seq_len": 4, "microbatch": 1}, {"seq_len": 4, "microbatch": 1, "config": TIED},
)  # fmt: skip
"""With four tokens a parameter's own step is what backward holds most of."""


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_instant_is_as_predicted(case, implementation):
    how = {
        "config": DEEP,
        "seq_len": 64,
        "optimizer_in_backward": True,
        "optimizer_implementation": implementation,
        **case,
    }
    found, expected = at(recorded(**how)), at(predicted(**how))
    assert {
        key: size for key, size in found.items() if abs(expected[key] - size) > NEAR * max(found.values())
    } == {}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_it_saves_is_what_is_predicted(implementation):
    """All gradients, and the optimizer's scratch for all of them."""
    how = {"config": DEEP, "seq_len": 16, "recompute": "full", "optimizer_implementation": implementation}
    plain = recorded(**how).peak.value
    saved, promised = (
        of(**how).peak.value - of(**how, optimizer_in_backward=True).peak.value
        for of in (recorded, predicted)
    )
    assert saved > 0.15 * plain
    assert abs(saved - promised) <= NEAR * plain


def test_no_gradient_is_there_at_the_optimizers_turn():
    for of in (recorded, predicted):
        sheet = of(optimizer_in_backward=True)
        assert (
            sum(
                i.at[Instant.OPTIMIZER_STEP].value
                for i in sheet.items
                if i.component is Component.GRADIENTS and Instant.OPTIMIZER_STEP in i.at
            )
            == 0
        )


@pytest.mark.slow
def test_fake_tensors_say_the_same_as_real_ones():
    how = {"optimizer_in_backward": True, "optimizer_implementation": "loop"}
    assert at(recorded(**how)) == at(recorded(**how, fake=True))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"microbatch": 1, "global_batch": 2}, "several gathers"),
        ({"engine": "transformers", "dp_replicate": 2}, "before ranks have summed"),
        ({"precision": "fp16-autocast"}, "overflowed"),
        ({"precision": "bf16-master"}, "copies in higher precision"),
        ({"engine": "fsdp2", "precision": "fsdp2-mixed", "dp_shard": 2}, "not modelled for fsdp2"),
    ],
)
def test_what_it_leaves_no_room_for_is_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        plan_of(optimizer_in_backward=True, **options)


def test_a_plan_says_it_and_is_read_back():
    from memsheet.plan.document import plan_document

    document = plan_document(plan_of(optimizer_in_backward=True))
    assert document["optimizer_in_backward"] is True
    again = memsheet.train("llama-tiny", plan={**document, "model": None})
    assert again.plan.optimizer_in_backward
