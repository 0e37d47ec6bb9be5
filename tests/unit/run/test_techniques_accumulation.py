"""Several micro-batches to an optimizer step, the last one smaller where the global batch is no multiple."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.errors import InputError  # noqa: E402
from memsheet.run.accumulate import micro_batches  # noqa: E402
from memsheet.sheet import Instant  # noqa: E402
from technique_runs import DEEP, at, corpus, falls, gradients, plan_of, predicted, recorded, training  # noqa: E402

CASES = ((4, 2), (5, 2), (3, 2), (7, 4), (3, 1))
"""(sequences of a step, of a micro-batch)"""
ROUNDING = 1e-5  # of a gradient's norm: fp32 sums in another order
NEAR = 0.001  # of the peak: padded labels and the loss's scalars


@pytest.mark.parametrize(("rows", "micro"), CASES)
def test_gradients_are_those_of_the_whole_batch_at_once(rows, micro):
    (whole, at_once), (parts, in_turn) = (
        training(microbatch=rows),
        training(microbatch=micro, global_batch=rows),
    )
    batch = corpus(rows)
    expected, found = gradients(whole, batch), gradients(parts, batch)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= ROUNDING * gradient.norm(), name
    assert len(in_turn) == -(-rows // micro)
    assert sum(in_turn) == pytest.approx(at_once[0], rel=ROUNDING)


def test_a_loss_falls():
    first, last = falls(25, microbatch=2, global_batch=5)
    assert last < first - 0.4


@pytest.mark.parametrize(("rows", "micro"), CASES)
def test_micro_batches_are_the_batch_cut_up(rows, micro):
    plan, batch = plan_of(microbatch=micro, global_batch=rows), corpus(rows)
    parts = list(micro_batches(batch, plan, int(plan.accumulation)))
    assert torch.equal(torch.cat([part["input_ids"] for part, _ in parts]), batch["input_ids"])
    assert sum(share for _, share in parts) == pytest.approx(1)
    assert [share for _, share in parts] == [part["labels"].shape[0] / rows for part, _ in parts]


def test_one_micro_batch_serves_again():
    plan = plan_of(microbatch=2, global_batch=5)
    parts = [part["input_ids"].shape[0] for part, _ in micro_batches(corpus(2), plan, 3)]
    assert parts == [2, 2, 1]
    assert [part["input_ids"].shape[0] for part, _ in micro_batches(corpus(2), plan, 2)] == [
        2,
        2,
    ]  # the first two of them


@pytest.mark.parametrize("precision", ["fp32", "bf16-autocast"])
@pytest.mark.parametrize(("rows", "micro"), [(4, 2), (3, 2), (7, 4), (9, 8), (9, 4)])
def test_every_instant_is_as_predicted(rows, micro, precision):
    """Of two micro-batches either the first, which is whole, or the second, which finds gradients there,
    holds most.
    """
    how = {"config": DEEP, "seq_len": 64, "microbatch": micro, "global_batch": rows, "precision": precision}
    found, expected = at(recorded(**how)), at(predicted(**how))
    assert {
        key: size for key, size in found.items() if abs(expected[key] - size) > NEAR * max(found.values())
    } == {}


def test_what_it_saves_is_what_is_predicted():
    """Against the whole batch at once: activations of fewer sequences, but gradients all the time."""
    for instant in (Instant.FORWARD, Instant.BACKWARD):
        real, promised = (
            of(config=DEEP, seq_len=64, microbatch=8).at(instant).value
            - of(config=DEEP, seq_len=64, microbatch=2, global_batch=8).at(instant).value
            for of in (recorded, predicted)
        )
        assert real > 0
        assert abs(real - promised) <= NEAR * recorded(config=DEEP, seq_len=64, microbatch=8).peak.value


@pytest.mark.parametrize(
    "options",
    [
        {"dp_replicate": 2, "global_batch": 3},
        {"engine": "deepspeed", "precision": "fp32", "microbatch": 2, "global_batch": 3, "dp_shard": 1},
    ],
    ids=str,
)
def test_a_rest_that_ranks_or_engines_cannot_take_is_refused(options):
    with pytest.raises(InputError, match="global_batch"):
        plan_of(**options)


def test_a_rest_is_said():
    from memsheet.plan.words import request_from
    from memsheet.resolve import resolve_request

    told = resolve_request(
        {**request_from({"seq_len": 8, "microbatch": 4, "global_batch": 10}), "task": "train"}, None
    ).assumed
    assert "the last micro-batch of a step has 2 of 4 sequences" in told
