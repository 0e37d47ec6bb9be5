"""What people say that it was not, and at what of a run they say that it died."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.causes.test_growing_figures import FULL

from memsheet.diagnose.denials import is_denied
from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import diagnose_texts


@pytest.mark.parametrize(
    ("said", "word", "denied"),
    [
        ("this is not a leak", "leak", True), ("a leak never happened", "leak", True), ("nobody shares the card", "shares", True),
        ("it is a leak, not a need", "leak", False), ("not enough memory, it leaks", "leak", False), ("not yet, but it leaks", "leak", False),
        ("exit code 137 never happened", "137", True), ("kein Leck", "Leck", True), ("не утечка", "утечка", True), ("没有泄漏", "泄漏", True),
    ],
)  # fmt: skip
def test_a_word_is_denied(said: str, word: str, denied: bool) -> None:
    at = said.index(word)
    assert is_denied(said, at, at + len(word)) is denied


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("exit code 137 never happened, the pod was not OOMKilled", Cause.REAL_NEED), ("the pod was OOMKilled", Cause.NOT_GPU_MEMORY),
        ("evaluation is not the problem, I disabled it. dies in training step 1", Cause.REAL_NEED),
        ("Training dies at step 0, the evaluation alone runs fine.", Cause.REAL_NEED),
        ("1000 steps run without any trouble. At step 1000 `accelerator.save_state()` is called and rank 0 gets", Cause.REGIME_CHANGE),
        ("The first 16 iterations are fine, the r1 penalty at i=16 dies each time:", Cause.REGIME_CHANGE),
        ("7B trains fine, all steps ok. 13B dies immediately:", Cause.REAL_NEED),
        ("ZeRO stage 2 works fine for 3B, with stage 3 it dies:", Cause.REAL_NEED),
        ("训练阶段显存稳定在 18G 左右,没有任何问题,一到验证(val_batch_size=64,训练是 8)就炸:", Cause.REGIME_CHANGE),
        ("step 39990 loss 0.07 lr 1e-4\nstep 40000 loss 0.07 lr 1e-4\nprogressive resizing: 256 -> 512", Cause.REGIME_CHANGE),
        ("step 4999 | loss 1.91\nstep 5000 | loss 1.91\nConsolidating full state dict on rank 0 ...", Cause.REGIME_CHANGE),
        ("step 136 loss 2.1 lr 1e-4\nstep 137 loss 2.1 lr 1e-4\n--save_steps 500 --eval_steps 500", Cause.REAL_NEED),
    ],
)  # fmt: skip
def test_at_what_a_run_died(said: str, cause: Cause) -> None:
    assert diagnose_texts({"log": f"{said}\n{FULL}"}).cause is cause
