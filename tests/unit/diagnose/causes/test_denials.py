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
        ("학습은 잘 되는데 200 step 에서 eval 들어가자마자 죽습니다", Cause.REGIME_CHANGE),
        ("Epoch 4: 100%|###| 782/782 loss=0.77\n[callback] epoch 5 reached: backbone.requires_grad_(True)  304,368,640 params\nEpoch 5:   0%|   | 0/782 [00:00<?, ?it/s]", Cause.REGIME_CHANGE),
        ('"curriculum_learning": {"difficulty": [1024,2048,8192], "max_step": [1000,5000]}\niteration 4999 | lm loss: 2.9\niteration 5000 | lm loss: 2.9', Cause.REGIME_CHANGE),
        ('"curriculum_learning": {"difficulty": [1024,2048,8192], "max_step": [1000,5000]}\niteration 6011 | lm loss: 2.9\niteration 6012 | lm loss: 2.9', Cause.REAL_NEED),
        ("lr_steps: [3000, 5000]\niteration 4999 | lm loss: 2.9\niteration 5000 | lm loss: 2.9", Cause.REAL_NEED),
        ("step 136 loss 2.1 lr 1e-4\nstep 137 loss 2.1 lr 1e-4\n--save_steps 500 --eval_steps 500", Cause.REAL_NEED),
    ],
)  # fmt: skip
def test_at_what_a_run_died(said: str, cause: Cause) -> None:
    assert diagnose_texts({"log": f"{said}\n{FULL}"}).cause is cause


def test_processes_alike_to_the_last_digit_are_ranks_of_the_job() -> None:
    ranks = "".join(f"Process {3300 + rank} has 3.71 GiB memory in use. " for rank in range(3))
    others = (
        FULL.replace("Including", ranks + "Including")
        .replace("23.45 GiB mem", "12.32 GiB mem")
        .replace("22.80", "11.70")
    )
    found = diagnose_texts({"log": f"ckpt = torch.load(args.resume)\n{others}"})
    assert found.cause is Cause.OTHER_PROCESS
    assert any("map_location" in cure.where for cure in found.cures)
    assert not any("end or move" in cure.change for cure in found.cures)
    strangers = diagnose_texts({"log": others.replace("3301 has 3.71", "3301 has 3.72")})
    assert any("end or move" in cure.change for cure in strangers.cures)
