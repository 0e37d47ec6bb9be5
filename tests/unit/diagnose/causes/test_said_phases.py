"""Evaluations, resumed runs and unfrozen layers as people tell them; full cards; ends without their cause."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced

from memsheet.diagnose.message import MAYBE, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


@pytest.mark.parametrize(
    ("said", "causes"),
    [
        ("training ran without problems, but when the validation loop starts I get OOM", (Cause.REGIME_CHANGE,)),
        ("500 steps of training are no problem, 20 seconds into the evaluation: out of memory", (Cause.REGIME_CHANGE,)),
        ("the first evaluation crashes, training works", (Cause.REGIME_CHANGE,)),
        ("Fine-tuning works great. As soon as generation-based evaluation kicks in it goes boom", (Cause.REGIME_CHANGE,)),
        ("when the validation starts it crashes", (Cause.REAL_NEED, Cause.REGIME_CHANGE)),
        ("Train works with bs 16, but model.evaluate after the first epoch runs out of memory", (Cause.REGIME_CHANGE,)),
        ("1st epoch trains OK then the eval kills it", (Cause.REGIME_CHANGE,)),
        ("OOM only when evaluation begins, training itself uses 60% of the card", (Cause.REGIME_CHANGE,)),
        ("验证的时候爆显存，训练没问题", (Cause.REGIME_CHANGE,)),
        ("my eval script runs fine, training dies", (Cause.REAL_NEED,)),
        ("validation is off, training dies", (Cause.REAL_NEED,)),
        ("I only evaluate, no training: it dies", (Cause.REAL_NEED,)),
    ],
)  # fmt: skip
def test_an_evaluation_alone_is_another_regime_where_training_is_said_to_fit(
    said: str, causes: tuple[Cause, ...]
) -> None:
    found = found_in(said, FULL_CARD)
    assert (found.open_between or (found.cause,)) == causes
    of_evaluation = any("the batch of the evaluation" in cure.change for cure in found.cures)
    assert of_evaluation is (causes == (Cause.REGIME_CHANGE,))


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("40h of training were OK. After the power cut I resume and it is OOM before the first step", Cause.REGIME_CHANGE),
        ("Job ran 2 days w/o problems. Restarted from the last checkpoint: OOM at once", Cause.REGIME_CHANGE),
        ("first forward after this is OOM. Without resuming (fresh start) there are 6 GB left over", Cause.REGIME_CHANGE),
        ("Runs fine for 600 steps and dies, restart from checkpoint → again some hundred steps and dies", Cause.REAL_NEED),
        ("Resume training = OOM, training from scratch = no OOM", Cause.REGIME_CHANGE),
        ("Resume or fresh, both die", Cause.REAL_NEED),
        ("worked well on A100 for hours, on the 4090 it dies at start", Cause.REAL_NEED),
        ("I resumed from checkpoint-4000, it trains fine for another 2000 steps and then it crashes", Cause.REAL_NEED),
    ],
)  # fmt: skip
def test_a_run_that_fitted_and_dies_as_it_is_resumed(said: str, cause: Cause) -> None:
    assert found_in(said, FULL_CARD).cause is cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Stage 1 (only the head) ran fine with batch 64. In epoch 6 I unfreeze the backbone and then:", Cause.REGIME_CHANGE),
        ("Phase 1, classifier only: fine. At epoch 10 my callback unfreezes the last 6 blocks -> dead", Cause.REGIME_CHANGE),
        ("With a frozen encoder it trains fine. A new run with unfreeze_encoder=True dies", Cause.REAL_NEED),
        ("I unfreeze all layers and it dies", Cause.REAL_NEED),
    ],
)  # fmt: skip
def test_layers_that_are_unfrozen_in_a_run_that_fitted(said: str, cause: Cause) -> None:
    found = found_in(said, FULL_CARD)
    assert found.cause is cause
    assert any("fewer layers trained" in cure.change for cure in found.cures) is (cause is Cause.REGIME_CHANGE)  # fmt: skip


@pytest.mark.parametrize(("step", "cause"), [(10001, Cause.REGIME_CHANGE), (12000, Cause.REAL_NEED)])
def test_a_run_is_another_one_behind_the_first_steps_that_people_name(step: int, cause: Cause) -> None:
    said = f"sequences of 1024 for the first 10,000 steps, then 4096. It dies in step {step}"
    assert found_in(said, FULL_CARD).cause is cause


@pytest.mark.parametrize("name", ["validate", "eval_epoch", "run_validation"])
@pytest.mark.parametrize(
    ("line", "cause"), [("epoch 1 loss=1.31", Cause.REGIME_CHANGE), ("", Cause.REAL_NEED)]
)
def test_a_script_s_own_evaluation_is_another_regime_behind_steps(name: str, line: str, cause: Cause) -> None:
    assert found_in(line, traced("main", name), FULL_CARD).cause is cause


@pytest.mark.parametrize("name", ["_load_zero_checkpoint", "_restore_base_optimizer_state"])
def test_zero_s_states_are_put_back_by_a_training_that_goes_on(name: str) -> None:
    assert found_in(traced("load_checkpoint", name), FULL_CARD).cause is Cause.REGIME_CHANGE


@pytest.mark.parametrize(
    ("free", "kept", "cause"),
    [("61.00 MiB", "201.00 MiB", Cause.REAL_NEED), ("61.00 MiB", "701.00 MiB", Cause.UNKNOWN)],
)
def test_a_card_of_which_next_to_nothing_is_left_is_full(free: str, kept: str, cause: Cause) -> None:
    found = found_in(modern("108.00 MiB", "23.68 GiB", free, "23.61 GiB", "22.90 GiB", kept))
    assert found.cause is cause
    assert ("the card is full" in found.because) is (cause is Cause.REAL_NEED)
    assert {cure.helps for cure in found.cures if cure.change == "expandable segments"} == {MAYBE}


@pytest.mark.parametrize(
    ("allocated", "cause"), [("14.87 GiB", Cause.REAL_NEED), ("14.20 GiB", Cause.UNKNOWN)]
)
def test_tensors_fill_a_card_of_which_a_message_does_not_say_what_was_free(
    allocated: str, cause: Cause
) -> None:
    message = (
        "XPU out of memory. Tried to allocate 688.00 MiB. GPU 0 has a total capacity of 15.56 GiB. Of the allocated memory "
        f"{allocated} is allocated by PyTorch, and 194.56 MiB is reserved by PyTorch but unallocated."
    )  # fmt: skip
    assert found_in(message).cause is cause


@pytest.mark.parametrize(
    ("device", "place"),
    [("MLU", "PYTORCH_MLU_ALLOC_CONF"), ("MUSA", "PYTORCH_MUSA_ALLOC_CONF"), ("NPU", "PYTORCH_NPU_ALLOC_CONF")],
)  # fmt: skip
def test_other_devices_have_their_own_words(device: str, place: str) -> None:
    message = modern("2.00 GiB", "47.74 GiB", "1.80 GiB", None, "41.00 GiB", "4.80 GiB", who=device)
    cures = {cure.change: cure.where for cure in found_in(message).cures}
    assert place in cures["expandable segments"]
    assert f"torch.{device.lower()}.empty_cache()" in cures


LAUNCHED = "ChildFailedError:\n  exitcode  : 1 (pid: 7)\n  traceback : To enable traceback see: https://pytorch.org/docs"  # fmt: skip
ENDS = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
    "Rank 0 scheduler is dead. Please check if there are relevant logs.",
    LAUNCHED,
)  # fmt: skip


@pytest.mark.parametrize("line", ENDS)
@pytest.mark.parametrize(
    "other", ["", "ValueError: Model architectures ['X'] are not supported", "AssertionError"]
)
def test_an_end_whose_cause_is_not_in_the_text_is_an_echo(line: str, other: str) -> None:
    found = found_in(other, line)
    assert (found.cause, found.found) == ((Cause.UNKNOWN, False) if other else (Cause.FOLLOW_UP_ERROR, True))
