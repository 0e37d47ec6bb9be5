"""What people say of a run in tongues other than English: growth, an evaluation, a checkpoint, a killed
process; and the same words where they say something else.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, brackets

from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import diagnose_texts

GROWTH = (
    "Der Speicher der GPU wächst mit jeder Epoche, in Epoche 6 stürzt es ab.", "La memoria de la GPU sube en cada época y en la época 7 revienta.",
    "La memoria sube con cada petición y nunca baja, después de unas 40 peticiones se cae", "La mémoire GPU augmente à chaque époque et ça plante à l'époque 5.",
    "La memoria della GPU cresce ad ogni epoca e all'epoca 7 va in crash.", "A memória da GPU vai subindo a cada época e estoura na época 9.", "Память на видеокарте растёт с каждой эпохой, на 8-й эпохе падает.",
    "GPU belleği her epoch sonunda artıyor ve 6. epoch'ta çöküyor.", "Bộ nhớ GPU tăng dần sau mỗi epoch và đến epoch 8 thì bị lỗi.", "显存每个 epoch 都在涨，第十轮就爆了", "学習を続けるとGPUメモリがステップごとに少しずつ増えていき、5000ステップ目で落ちます。",
    "Pamięć GPU rośnie po każdej epoce, w 7 epoce pada", "ComfyUI 批量出图，显存一张比一张高，第 30 张左右必爆", "Бот: после каждого запроса видеопамять увеличивается примерно на 300 МБ, через 40 запросов падает",
    "에폭마다 GPU 메모리가 계속 증가해서 12 에폭에서 죽습니다.",
)  # fmt: skip
EVALUATION = (
    "Training läuft problemlos, aber bei der Validierung:", "El entrenamiento va bien, pero al evaluar da:", "L'entraînement marche bien mais pendant la validation :", "L'addestramento va bene, ma durante la valutazione va in crash",
    "O treino roda sem problemas, mas na avaliação estoura:", "Обучение идёт нормально, а на валидации вылетает:", "Eğitim sorunsuz, ama doğrulama sırasında çöküyor", "Quá trình train bình thường, nhưng khi đánh giá thì lỗi",
    "L'entraînement passe (18 Go), c'est l'évaluation à la fin de l'époque qui plante :", "Trening działa dobrze, ale podczas walidacji pada", "训练正常，一到验证就爆显存", "学習は問題ないのに、評価でOOMになります", "학습은 잘 되는데 평가할 때 OOM이 납니다",
)  # fmt: skip
RESUMPTION = (
    "Von vorne läuft es, beim Fortsetzen vom Checkpoint kommt OOM", "Desde cero funciona, pero al reanudar da error", "Depuis le début ça marche, mais à la reprise ça plante", "Do zero roda, mas ao retomar o treino estoura",
    "С нуля работает, но при возобновлении падает", "从头训练没问题，断点续训就爆显存", "最初からなら動くのに、再開するとOOM", "처음부터 하면 잘 되는데 이어서 하면 OOM",
)  # fmt: skip
SAVING = (
    "Entrena bien 500 pasos y al guardar el checkpoint revienta", "训练500步没问题，保存checkpoint的时候爆显存", "Training läuft 500 Schritte gut, beim Speichern des Checkpoints kommt OOM", "Обучение идёт нормально, а при сохранении чекпоинта падает",
    "Training runs for 500 steps without problems, but when the checkpoint is saved it goes OOM", "every time trainer.save_model() is called at the end it crashes with OOM, the whole training was fine",
)  # fmt: skip
THAWED = (
    "Backbone eingefroren bis Epoche 5, danach alles trainierbar. Epoche 6 startet -> OOM", "前5个epoch冻结backbone没问题，第6个epoch解冻之后直接爆显存", "最初の5エポックはバックボーンを凍結、6エポック目で解凍した瞬間OOM",
    "Первые 5 эпох бэкбон заморожен, с 6 эпохи разморозка - и сразу падает",
)  # fmt: skip
SHARED = (
    "实验室服务器，别人也在用", "Общий сервер лаборатории", "servidor compartido del laboratorio", "serveur partagé du labo", "研究室の共有サーバです", "연구실 공용 서버", "gemeinsam genutzter Server",
)  # fmt: skip
NEITHER = (
    "把 batch size 增加到 8 之后第 2 步显存就不够了", "Evaluation läuft, Training stürzt nach 3 Schritten ab", "El entrenamiento revienta, la evaluación va bien", "Обучение падает, валидация работает",
    "训练爆显存，验证正常", "显卡 24G，batch size 8，一开始就爆。", "Eğitim hemen başta bu hatayı veriyor:", "Der Arbeitsspeicher wächst mit jeder Epoche, in Epoche 6 stürzt es ab.", "系统内存不断增加，第5轮报错",
    "Der Speicher ist beim Training voll, gespeichert wird nie", "共享GPU内存 16G", "checkpoint 保存正常，训练爆显存", "backbone 冻结，第2步爆显存", "I save the model every 500 steps. It dies at step 1.",
    "Beim Fortsetzen läuft es, von vorne nicht", "augmentation of images at epoch 7, GPU at 90 %",
)  # fmt: skip
KILLED = ("Getötet", "Processus arrêté", "Tué", "Terminado (killed)", "Morto", "Ucciso", "Убито", "已杀死", "強制終了", "죽었음")  # fmt: skip


@pytest.mark.parametrize("said", GROWTH)
def test_growth_is_heard(said: str) -> None:
    assert diagnose_texts({"log": f"{said}\n{FULL_CARD}"}).cause is Cause.LEAK
    assert diagnose_texts({"log": f"{said}\ntorch.OutOfMemoryError: CUDA out of memory."}).cause is Cause.LEAK


@pytest.mark.parametrize("said", EVALUATION)
def test_an_evaluation_that_dies_alone_is_heard(said: str) -> None:
    found = diagnose_texts({"log": f"{said}\n{FULL_CARD}"})
    assert found.cause is Cause.REGIME_CHANGE
    assert any("the batch of the evaluation" in cure.change for cure in found.cures)


@pytest.mark.parametrize("said", RESUMPTION)
def test_a_resumption_that_dies_alone_is_heard(said: str) -> None:
    assert diagnose_texts({"log": f"{said}\n{FULL_CARD}"}).cause is Cause.REGIME_CHANGE


@pytest.mark.parametrize("said", SAVING)
def test_a_checkpoint_whose_saving_dies_is_heard(said: str) -> None:
    found = diagnose_texts({"log": f"{said}\n{FULL_CARD}"})
    assert found.cause is Cause.REGIME_CHANGE
    assert any("saved in shards" in cure.change for cure in found.cures)


@pytest.mark.parametrize("said", THAWED)
def test_layers_that_are_trained_from_some_epoch_on_are_heard(said: str) -> None:
    found = diagnose_texts({"log": f"{said}\n{FULL_CARD}"})
    assert found.cause is Cause.REGIME_CHANGE
    assert any("train" in cure.change for cure in found.cures)


@pytest.mark.parametrize("said", SHARED)
def test_a_machine_that_others_use_too_is_heard(said: str) -> None:
    message = brackets("512.00 MiB", "23.69 GiB", "3.10 GiB", "200.00 MiB", "3.30 GiB")
    assert diagnose_texts({"log": f"{said}\n{message}"}).cause is Cause.OTHER_PROCESS
    assert diagnose_texts({"log": message}).undecided


@pytest.mark.parametrize("said", NEITHER)
def test_the_same_words_for_something_else_are_not(said: str) -> None:
    assert diagnose_texts({"log": f"{said}\n{FULL_CARD}"}).cause is Cause.REAL_NEED


@pytest.mark.parametrize("word", KILLED)
def test_a_shell_says_killed_in_its_tongue(word: str) -> None:
    for line in (word, f"run.sh: line 3:  4242 {word}  python train.py"):
        assert diagnose_texts({"log": f"python load.py\n{line}"}).cause is Cause.NOT_GPU_MEMORY
    assert not diagnose_texts({"log": f"the film {word} is good"}).found


@pytest.mark.parametrize("words", [
    "大部分样本都没问题，只有遇到特别长的样本（12k tokens）时才会 OOM", "Das Training läuft problemlos, nur bei sehr langen Sequenzen stürzt es ab",
    "L'entraînement tourne bien, mais il plante sur les séquences très longues", "学習は正常に回りますが、長いサンプルで落ちます",
])  # fmt: skip
def test_a_sample_that_is_far_longer_is_another_step_in_any_tongue(words: str) -> None:
    assert diagnose_texts({"log": f"{words}\n{FULL_CARD}"}).cause is Cause.REGIME_CHANGE
