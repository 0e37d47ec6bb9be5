"""Sentences of people whose job simply needs more than the card has: figures, stages, tongues and settings
that are no growth, no other regime, no neighbour.
"""

from __future__ import annotations

from tests.unit.diagnose.corpus import FULL_CARD

from laws import every
from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import diagnose_texts

SAID = (
    "I trained the same model on another machine for 3 epochs without problems.",
    "Epoch 1 runs fine on my A100, here it dies at once.",
    "I increased the batch size from 4 to 8 and now it dies.",
    "The first phase of the project was fine, now we scale up.",
    "Stage 1 of ZeRO works fine, then with stage 2 I get this at the first step.",
    "It worked with 7B. With 13B: first step dies.",
    "Phase 1 is done (data), phase 2 dies: training.",
    "batch size 1 works, batch size 2 dies in the first step.",
    "seq 2048 works fine, with seq 4096 it dies immediately.",
    "seq_len 2048 -> 4096 is all I changed.",
    "512x512 works for 100 images, with 1024x1024 it crashes.",
    "The longest sample in the dataset has 4096 tokens.",
    "some samples have 4000 tokens, most 300, everything is padded to 4096",
    "max_length=4096, the longest document is cut.",
    "I know memory usage grows with the batch size.",
    "Memory increases with sequence length, as expected; at step 20 it dies.",
    "memory goes up to 23 GB in the first 10 steps and then it dies",
    "The GPU memory jumps from 3 GB to 20 GB when the model is loaded, after 2 minutes it dies",
    "I use gradient accumulation of 16 steps and EMA from step 0.",
    'evaluation_strategy="steps", eval_steps=500. It dies at step 1.',
    "Validation accuracy is not important, training dies in the first step",
    "validation set has 500 samples",
    "The evaluation harness runs fine. Training: OOM",
    "I resumed from a checkpoint yesterday. Today from scratch: OOM",
    "resume_from_checkpoint=None",
    "I collect metrics in a list every step (floats) and it dies after 300 steps",
    "history.append(loss.item())",
    "losses = []; losses.append(loss.item())",
    "preds.append(logits.argmax(-1).cpu())",
    "total_loss += loss.item()",
    "acc += (pred == y).sum()",
    "running_loss += loss.detach().item()",
    "warmup_steps: 100\nstep 99 loss 1\nstep 100 loss 1",
    "switch_at_step: 5000\nstep 10 loss 1",
    "lr schedule switches at step 100. step 100 loss 1.2",
    "The learning rate drops at epoch 3. Epoch 3 begins.",
    "loss rises at step 200. step 200 loss 9",
    "nvidia-smi: 20 GB, 21 GB, 22 GB, 23 GB on GPUs 0 1 2 3",
    "Loading: 25%: 5 GB, 50%: 10 GB, 75%: 15 GB",
    "rank 0: 20.1 GB, rank 1: 20.2 GB, rank 2: 20.3 GB",
    "7B needs 14 GB, 13B needs 26 GB, 34B needs 68 GB",
    "ctx 4k: 18 GB, 8k: 20 GB, 12k: 22 GB",
    "epoch 1: 20.1 GB, epoch 2: 20.1 GB, epoch 3: 20.2 GB",
    "epoch 1 took 20 min, epoch 2 22 min, epoch 3 24 min",
    "run 1: lr 1e-4, run 2: lr 2e-4, run 3: lr 3e-4",
    "checkpoint sizes: epoch 1 2.1 GB, epoch 2 4.2 GB, epoch 3 6.3 GB on disk",
    "disk usage after each epoch: 20 GB, 40 GB, 60 GB",
    "RAM after each epoch: 20 GB, 40 GB, 60 GB",
    "dataset shards: file 1: 2 GB, file 2: 4 GB, file 3: 6 GB",
    "Ich habe die Batchgröße erhöht, nach 3 Schritten ist der Speicher voll.",
    "Das Training läuft auf der A100 gut, hier stürzt es ab.",
    "Die Validierung ist aus.",
    "He subido el batch a 8 y en el paso 3 se queda sin memoria.",
    "La memoria es de 24 GB, en la época 1 revienta.",
    "El modelo entrena bien en otra máquina.",
    "J'augmente la taille du batch et la mémoire est pleine à l'étape 2.",
    "La mémoire de la carte est de 24 Go",
    "A memória é de 24 GB e o treino estoura na primeira época",
    "Увеличил batch до 8, на 2-м шаге памяти не хватает.",
    "Память 24 ГБ, обучение падает сразу",
    "显存24G，第1个epoch就爆了",
    "把序列长度增加到4096，第2步显存不足",
    "显存从3G涨到23G然后就爆了",
    "バッチサイズを増やしたらメモリ不足",
    "学習の最初のステップで落ちます",
    "배치 크기를 늘리니 메모리가 부족합니다",
    "학습 첫 스텝에서 죽습니다",
    "batch boyutunu artırınca bellek yetmiyor, 2. adımda",
    "Tăng batch size lên 8 thì hết bộ nhớ ở bước 2",
    "I am on Windows Subsystem for Linux.",
    "The process was Killed once last week, today it is this:",
    "kernel is fine",
    "my colleague's job ended, the card is mine alone",
)  # fmt: skip


@every("said", SAID)
def test_a_plain_need_stays_one_whatever_is_said_besides(said: str) -> None:
    for text in (f"{said}\n{FULL_CARD}", f"{FULL_CARD}\n{said}"):
        assert diagnose_texts({"log": text}).cause is Cause.REAL_NEED
