"""Stages, longer samples and what joins a run at a step, as logs and people say it; and runs that only begin
there.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD

from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import diagnose_texts

TRAINED = "step 9998 loss 1.31 lr 1e-4\nstep 9999 loss 1.31 lr 1e-4\n"
OTHERS = (
    "We train with sequence length warmup: 512 until step 5000, then 2048. It died at step 5001.", "phase 1 (seq 128) went 90000 steps without a problem, phase 2 (seq 512) dies at its first step",
    "step 3999 | seqlen 1024 | loss 2.3\nstep 4000 | seqlen 1024 | loss 2.3\nstep 4001 | seqlen 8192", "Progressive resizing: 128px for 10 epochs, 256px for the next 10 - fine, then 512px and the first batch is OOM",
    "adversarial loss begins at epoch 5 (disc_start=5); it died on the first batch of epoch 5", "EMA model starts at step 2000. step 2000 OOM", "Stage 1 (projector only) finished without problems. Stage 2 dies in the first iteration.",
    "The loss function switches to perceptual at step 3000.\nstep 2999 loss 0.1\nstep 3000 loss 0.1", "epoch 9 loss 1.2\nfrom epoch 10 on we train on full resolution\nepoch 10 begins",
    f"{TRAINED}resolution 256 -> 512", f"{TRAINED}[trainer] entering stage 2: all layers trainable", f"{TRAINED}batch size ramp-up: batch_size 32 -> 64", f"{TRAINED}curriculum: stage 2 (seq_len 2048 -> 8192), micro_batch_size stays 12",
    "steps: 19990 loss: 2.41 | curriculum seqlen: 2048\nsteps: 20000 loss: 2.40 | curriculum seqlen: 2048\nRank: 6 | curriculum seqlen: 4096",
)  # fmt: skip
LONG_SAMPLES = (
    "It trains 2300 steps and dies on a batch with one sample of 31,000 tokens, others have 2-3k.", "random crash after 200 to 900 steps, seems to be when it hits the longest documents",
    "dynamic padding; runs 1,420 steps fine and dies on a batch whose longest sample has 15k tokens: it meets the longest",
)  # fmt: skip
THE_SAME = (
    "Training starts at step 4000.\nstep 4000 loss 2.1", "OOM starts at step 12. step 12 loss 3", "phase 1 dies at its first step too", f"{TRAINED}seq_len 4096 -> 2048",
    f"{TRAINED}[trainer] entering stage 2\nstep 10000 loss 1.3 lr 1e-4\nstep 10001 loss 1.3 lr 1e-4\nstep 10002 loss 1.3 lr 1e-4", "curriculum seqlen: 4096\nRank: 6 | curriculum seqlen: 4096",
    "memory usage rises at step 100. step 100 loss 2", "the longest samples are cut to 512 tokens", "resolution 256 -> 512 is what I changed in the configuration",
)  # fmt: skip


@pytest.mark.parametrize("said", OTHERS)
def test_a_step_that_is_another_one_is_another_regime(said: str) -> None:
    assert diagnose_texts({"log": f"{said}\n{FULL_CARD}"}).cause is Cause.REGIME_CHANGE


@pytest.mark.parametrize("said", LONG_SAMPLES)
def test_a_sample_that_is_far_longer_is_another_regime_and_cut(said: str) -> None:
    found = diagnose_texts({"log": f"{said}\n{FULL_CARD}"})
    assert found.cause is Cause.REGIME_CHANGE
    assert found.cures[0].change.startswith("the longest samples cut")


@pytest.mark.parametrize("said", THE_SAME)
def test_a_run_that_only_begins_or_fails_there_is_the_same(said: str) -> None:
    assert diagnose_texts({"log": f"{said}\n{FULL_CARD}"}).cause is Cause.REAL_NEED
