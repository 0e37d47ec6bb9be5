"""Jobs as people tell them before the message: what grows, what becomes another run, what is a plain need."""

from __future__ import annotations

from tests.unit.diagnose.corpus import FULL_CARD

from laws import every
from memsheet.diagnose.verdict import diagnose_texts

TOLD: dict[str, tuple[tuple[str, str], ...]] = {
    "engine_overcommit": (
        ("vllm mm", 'INFO Available KV cache memory: 12.1 GiB\nINFO GPU KV cache size: 99,000 tokens\nINFO: "POST /v1/chat/completions HTTP/1.1" 200 OK\n  File "/x/site-packages/vllm/model_executor/models/qwen2_5_vl.py", line 700, in forward\n  File "/x/site-packages/vllm/v1/worker/gpu_model_runner.py", line 900, in _execute_mm_encoder'),
        ("sgl run", '[2025-01-01 10:00:00 TP0] Memory pool end. avail mem=1.2 GB\n[2025-01-01 10:00:02 TP0] Prefill batch. #new-seq: 1, #new-token: 8192\n  File "/x/sglang/srt/managers/scheduler.py", line 1, in event_loop_overlap'),
    ),
    "leak": (
        ("hidden lists", 'hs = []\nfor i, batch in enumerate(loader):\n    out = model(**batch.to("cuda"), output_hidden_states=True)\n    hs.append(out.hidden_states[-1])\n# dies at i = 212'),
        ("retain", "loss.backward(retain_graph=True) and the state of the RNN is carried over between batches; memory increases each iteration until iteration 340"),
        ("hidden rnn", "hidden = model(x, hidden) is never detached. allocated after iter 10: 3.1 GB, iter 20: 5.0 GB, iter 30: 6.9 GB, iter 40: 8.8 GB, dies around iter 110"),
        ("wandb", 'I log wandb.log({"loss": loss}) every step. torch.cuda.memory_allocated() is 2.1, 2.3, 2.5, 2.7 GB at steps 100, 200, 300, 400; OOM at step 9800'),
        ("cache gradio", "gradio app, after 6-7 generations: OOM. nvidia-smi: 7.8 GB after 1st image, 9.9 GB after 2nd, 12.0 GB after 3rd, 14.1 GB after 4th"),
        ("api reload", "Every time I reload the model through the /switch endpoint the VRAM goes up: 5.1 -> 9.9 -> 14.7 -> 19.5 GB and the 5th reload fails"),
        ("ru server leak", "Бот на whisper: после каждого запроса видеопамять увеличивается примерно на 300 МБ, через 40 запросов падает"),
        ("de nvidia-smi", "Nach jedem Request steigt der belegte GPU-Speicher laut nvidia-smi: 6,1 GB, 6,9 GB, 7,7 GB, 8,5 GB. Nach ca. 25 Requests Absturz."),
        ("pl leak", "Pamięć GPU rośnie po każdej epoce, w 7 epoce pada"),
    ),
    "real_need": (
        ("notleak warm", "step 0 mem 9.1 GB, step 1 mem 21.4 GB (adam), step 2 OOM"),
        ("notleak bucket", "sorted by length: batch 1 8.1 GB, batch 2 8.9 GB, batch 3 9.7 GB ... (longest last)"),
    ),
    "regime_change": (
        ("saving", "Training is fine for 500 steps; when it saves the checkpoint at step 500 (gather full state dict) rank 0 dies"),
        ("long video", "After 40 minutes it hits a 3 minute video (others are 10-20 s) and dies"),
        ("bucket", "bucket sampler: buckets of 512x512 run 1200 steps, the first batch from the 1024x1024 bucket dies"),
        ("regime lora2full", "epoch 1-3 only the head (backbone frozen) 9 GB, at epoch 4 backbone.requires_grad_(True) -> OOM in the first backward"),
        ("regime swa", "swa_start=75. Epoch 75 begins: OOM. 74 epochs no problem"),
        ("regime ema", "The first 1000 steps run fine; when ema is created at step 1000 it crashes.\nstep 1000"),
        ("regime gen eval", "Trainer with predict_with_generate: training fits (18 of 24 GB), the evaluation at step 500 goes OOM"),
        ("fr eval", "L'entraînement passe (18 Go), c'est l'évaluation à la fin de l'époque qui plante :"),
        ("es curric", "Curriculum: secuencias de 512 hasta el paso 5000 y luego 2048; en el paso 5001 revienta"),
        ("de unfreeze", "Backbone eingefroren bis Epoche 5, danach alles trainierbar. Epoche 6 startet -> OOM"),
        ("zh unfreeze", "前5个epoch冻结backbone没问题，第6个epoch解冻之后直接爆显存"),
        ("ja unfreeze", "最初の5エポックはバックボーンを凍結、6エポック目で解凍した瞬間OOM"),
        ("es save", "Entrena bien 500 pasos y al guardar el checkpoint revienta"),
        ("zh save", "训练500步没问题，保存checkpoint的时候爆显存"),
        ("de save", "Training läuft 500 Schritte gut, beim Speichern des Checkpoints kommt OOM"),
        ("en save prose", "Training runs for 500 steps without problems, but when the checkpoint is saved it goes OOM"),
        ("en save 2", "every time trainer.save_model() is called at the end it crashes with OOM, the whole training was fine"),
        ("en generate samples", "every 500 steps I sample images from the model for logging; the steps fit, the sampling OOMs"),
    ),
}  # fmt: skip
"""By verdict: a name, and what is told."""


@every(
    "verdict, told",
    [(verdict, told) for verdict, jobs in TOLD.items() for _, told in jobs],
)
def test_a_job_that_is_told_comes_to_its_verdict(verdict: str, told: str) -> None:
    found = diagnose_texts({"log": f"{told}\n{FULL_CARD}"})
    assert found.cause.value == verdict
    assert [cure for cure in found.cures if cure.helps == "yes"] == []
