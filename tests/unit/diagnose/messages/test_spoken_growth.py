"""Memory that grows, in lines and sentences of many shapes and tongues, and figures that grow for something
else.
"""

from __future__ import annotations

import itertools

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern

from laws import every
from memsheet.diagnose.message import Cause
from memsheet.diagnose.messages.spoken_growth import growth_in_prose
from memsheet.diagnose.verdict import diagnose_texts

BARE = "torch.OutOfMemoryError: CUDA out of memory."
LINES = (
    "epoch {n} train_loss=0.1 gpu_mem_allocated={size:.2f}GB", "[{n}/100] cuda memory allocated: {size:.2f} GB", "step={n} alloc={size:.1f} GiB loss=1.2",
    "it {n} psnr 21.3 allocated {size:.2f} GiB max 80.04 GiB", "Iter {n} | mem {size:.2f}G", "image {n:04d}.png done, allocated {size:.2f} GiB",
    'INFO: 10.2.0.12:53107 - "POST /score HTTP/1.1" 200 OK [gpu alloc = {size:.2f} GiB]', "request {n}: gpu memory used {size:.2f} GiB", "第{n}步 显存占用 {size:.2f} GB",
    "epoch {n} 显存 {size:.2f}G", "paso {n} memoria asignada {size:.2f} GB", "Epoche {n}: belegt {size:.2f} GB", "шаг {n} память {size:.2f} ГБ", "étape {n} : mémoire allouée {size:.2f} Go",
    "ステップ {n} メモリ使用量 {size:.2f} GB", "에폭 {n} 메모리 {size:.2f} GB", "gen {n}: VRAM {size:.2f} GB", "trial {n} finished, GPU mem: {size:.2f} GB", "Fold {n} done, allocated {size:.2f} GB",
    "after batch {n}: torch.cuda.memory_allocated() = {size:.2f} GB",
)  # fmt: skip
"""What loops print of their memory."""
SENTENCES = (
    "After each epoch nvidia-smi: {0} GB → {1} GB → {2} GB → {3} GB, then it died", "nvidia-smi per trial: {0}, {1}, {2}, {3} GB, dies in trial 5",
    "torch.cuda.memory_allocated after fold 1: {0} GB, fold 2: {1} GB, fold 3: {2} GB, fold 4 crashes", "her fold sonrası: {0} GB -> {1} GB -> {2} GB ve 4. foldda çöküyor",
    "После каждой эпохи: {0} ГБ → {1} ГБ → {2} ГБ → {3} ГБ, потом OOM", "Après chaque époque : {0} Go, {1} Go, {2} Go, {3} Go puis plantage", "每个 epoch 之后显存：{0}G → {1}G → {2}G，然后就 OOM",
    "エポックごとに {0}GB → {1}GB → {2}GB と増えて4エポック目でOOM", "Tras cada pliegue (fold): {0} GB, {1} GB, {2} GB y en el cuarto revienta", "Nach jeder Epoche: {0} GB -> {1} GB -> {2} GB -> Absturz",
    "A cada época: {0} GB, {1} GB, {2} GB, {3} GB e depois estoura", "After every message of the chat it goes {0} -> {1} -> {2} -> {3} GB", "epoch 1: {0} GB\nepoch 2: {1} GB\nepoch 3: {2} GB\nepoch 4: {3} GB",
)  # fmt: skip
"""What people write of it."""


@pytest.mark.parametrize("line", LINES)
def test_lines_that_grow_by_the_same_are_a_leak_and_others_are_not(line: str) -> None:
    for rise, causes in ((1.9, {Cause.LEAK}), (0.0, {Cause.REAL_NEED})):
        log = [line.format(n=n, size=4.1 + rise * n) for n in range(10)]
        assert {diagnose_texts({"log": "\n".join((*log, FULL_CARD))}).cause} == causes
    sawtooth = [line.format(n=n, size=4.1 + 2 * (n % 3)) for n in range(12)]
    assert diagnose_texts({"log": "\n".join((*sawtooth, FULL_CARD))}).cause is Cause.REAL_NEED


@every("sentence, message", itertools.product(SENTENCES, (BARE, FULL_CARD)), ids=lambda each: each[:24])
def test_figures_of_a_sentence_that_grow_evenly_are_a_leak_and_others_are_not(
    sentence: str, message: str
) -> None:
    grown, even, falling, jump = (20, 34, 47, 61), (20, 20, 20, 20), (47, 34, 20, 18), (4, 40, 41, 70)
    assert diagnose_texts({"log": f"{sentence.format(*grown)}\n{message}"}).cause is Cause.LEAK
    for sizes in (even, falling, jump):
        assert growth_in_prose(sentence.format(*sizes)) == ()
        assert diagnose_texts({"log": f"{sentence.format(*sizes)}\n{message}"}).cause is not Cause.LEAK


@pytest.mark.parametrize(
    "said",
    [
        "batch size 1: 8 GB, 2: 12 GB, 4: 20 GB after each run", "run 1 (bs 2): 8 GB, run 2 (bs 4): 12 GB, run 3 (bs 6): 16 GB", "7B: 14 GB, 13B: 26 GB, 34B: 39 GB after each run",
        "GPU 0: 20 GB -> GPU 1: 22 GB -> GPU 2: 24 GB at each step", "loss after each epoch: 1.1 -> 1.8 -> 2.5", "each epoch took 20 min, 22 min, 24 min",
        "system RAM after each epoch: 20 GB -> 34 GB -> 47 GB", "usage on the 4 GPUs: 20 GB, 21 GB, 22 GB, 23 GB", "step 1: 4.1 GB, step 2: 6.1 GB, step 3: 8.1 GB",
        "for every run with a sequence length of 1k, 2k, 4k: 8 GB, 12 GB, 16 GB",
    ],
)  # fmt: skip
def test_figures_that_grow_for_something_else_are_none(said: str) -> None:
    assert growth_in_prose(said) == ()
    assert diagnose_texts({"log": f"{said}\n{FULL_CARD}"}).cause is Cause.REAL_NEED


@pytest.mark.parametrize("gap", ["...", "…", "[... 30 lines ...]", "(snip)"])
def test_growth_goes_on_across_lines_that_are_left_out(gap: str) -> None:
    line = "step {n} allocated {size:.2f} GiB"
    first = [line.format(n=n, size=4.1 + 0.43 * n) for n in range(7)]
    for later, cause in (((40, 41), Cause.LEAK), ((3, 5), Cause.REAL_NEED)):
        behind = [line.format(n=n, size=4.1 + 0.43 * n) for n in later]
        log = "\n".join((*first, gap, *behind, FULL_CARD))
        assert diagnose_texts({"log": log}).cause is cause


@pytest.mark.parametrize(
    "said",
    [
        "每 1000 episode 显存 +1.1GB, 6000 个 episode 后挂",
        "memory grows by 1.1 GB per 1000 episodes, dies after 6000 episodes",
        "je 1000 Schritte 1,1 GB mehr, nach 6000 Schritten ist Schluss: +1.1 GB alle 1000 Schritte",
        "la memoria crece +1.1 GB cada 1000 pasos, muere tras 6000 pasos",
        "1000ステップごとに +1.1GB 残る、6000 ステップで落ちる",
        "1000스텝마다 1.1GB 남음 +1.1GB, 6000 스텝에서 죽음",
    ],
)
def test_a_rate_of_many_rounds_fills_the_card_in_as_many_of_them(said: str) -> None:
    message = modern("2.00 MiB", "7.79 GiB", "1.50 MiB", "7.78 GiB", "7.30 GiB", "24.00 MiB")
    assert diagnose_texts({"log": f"{said}\n{message}"}).cause is Cause.LEAK
