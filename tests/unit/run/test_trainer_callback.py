"""The callbacks of transformers' Trainer and of Lightning's: what they say with a GPU, without one, and that
they say it once a node.
"""

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import memsheet
from memsheet.run import callback as module
from memsheet.run.step_watch import StepWatch

pytest.importorskip("transformers")
JOB: dict[str, Any] = {"gpus": "1xH100-80GB", "seq_len": 512, "microbatch": 1}
FIRST = SimpleNamespace(is_local_process_zero=True)
GIB = 2**30


def gpu(**changes: int) -> dict[str, int]:
    return {
        "total": 80 * GIB,
        "others": GIB,
        "room": 79 * GIB,
        "allocated": 0,
        "peak_allocated": 0,
        "peak_reserved": 0,
        **changes,
    }


def said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    counts: dict[str, int] | None,
    event: str,
) -> list[Any]:
    monkeypatch.setattr(module, "gpu_memory_counters", lambda: counts)
    told = memsheet.trainer_callback("llama-3.2-1b", **JOB)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="memsheet"):
        getattr(told, event)(None, FIRST, None, model=None)
    return [record for record in caplog.records if record.name == "memsheet"]


def test_without_a_gpu_the_prediction_is_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = said(monkeypatch, caplog, None, "on_train_begin")
    assert begun[0].getMessage().startswith("memsheet predicts ")
    assert "no GPU" in begun[-1].getMessage()
    assert said(monkeypatch, caplog, None, "on_train_end") == []


@pytest.mark.parametrize(
    ("room", "word", "level"), [(79 * GIB, "fits", "INFO"), (GIB, "does not fit", "WARNING")]
)
def test_room_is_looked_for_at_the_start(
    monkeypatch: Any, caplog: Any, room: int, word: str, level: str
) -> None:
    last = said(monkeypatch, caplog, gpu(room=room), "on_train_begin")[-1]
    assert last.getMessage().startswith(word + ":")
    assert last.levelname == level


def test_between_the_ends_of_the_range_nothing_is_promised(monkeypatch: Any, caplog: Any) -> None:
    sheet = memsheet.train("llama-3.2-1b", **JOB).sheets[0]
    middle = int(sheet.reserved.low + sheet.reserved.high) // 2
    assert (
        said(monkeypatch, caplog, gpu(room=middle), "on_train_begin")[-1]
        .getMessage()
        .startswith("may not fit:")
    )


def test_libraries_that_are_still_to_be_loaded_need_room_too(monkeypatch: Any, caplog: Any) -> None:
    sheet = memsheet.train("llama-3.2-1b", **JOB).sheets[0]
    outside = int(sheet.device.high) - int(sheet.reserved.high)
    for others, word in ((0, "may not fit:"), (outside, "fits:")):
        counts = gpu(room=int(sheet.reserved.high), others=others)
        assert said(monkeypatch, caplog, counts, "on_train_begin")[-1].getMessage().startswith(word)


def test_peaks_are_held_against_their_ranges(monkeypatch: Any, caplog: Any) -> None:
    sheet = memsheet.train("llama-3.2-1b", **JOB).sheets[0]
    counts = gpu(peak_allocated=int(sheet.allocated.value), peak_reserved=int(sheet.reserved.high) + GIB)
    allocated, reserved = said(monkeypatch, caplog, counts, "on_train_end")
    assert (allocated.levelname, reserved.levelname) == ("INFO", "WARNING")
    assert ", inside the predicted" in allocated.getMessage()
    assert ", above the predicted" in reserved.getMessage()


def test_another_process_of_a_node_says_nothing(caplog: Any) -> None:
    told = memsheet.trainer_callback("llama-3.2-1b", **JOB)
    with caplog.at_level(logging.INFO, logger="memsheet"):
        told.on_train_begin(None, SimpleNamespace(is_local_process_zero=False), None)
    assert not caplog.records


def test_it_is_what_a_trainer_takes() -> None:
    from transformers import TrainerCallback

    assert isinstance(memsheet.trainer_callback("llama-3.2-1b", **JOB), TrainerCallback)


def test_the_module_needs_neither_torch_nor_transformers() -> None:
    code = "import sys, memsheet.run.callback; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_log_goes_to_the_trackers_that_have_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[tuple[str, dict[str, float]]]()
    run = SimpleNamespace(get=object)
    fakes = {
        "wandb": SimpleNamespace(run=object(), log=lambda figures: sent.append(("wandb", figures))),
        "trackio": SimpleNamespace(context_vars=SimpleNamespace(current_run=run), log=lambda figures: sent.append(("trackio", figures))),
        "mlflow": SimpleNamespace(active_run=lambda: None, log_metrics=lambda *_, **__: sent.append(("mlflow", {}))),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(
        module, "gpu_memory_counters", lambda: gpu(peak_reserved=3 * GIB, peak_allocated=2 * GIB)
    )
    told = memsheet.trainer_callback("llama-3.2-1b", **JOB)
    told.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=7), None, logs={"loss": 1.0})
    told.on_log(None, SimpleNamespace(is_world_process_zero=False, global_step=8), None, logs={})
    assert [name for name, _ in sent] == ["wandb", "trackio"]
    reserved = memsheet.train("llama-3.2-1b", **JOB).sheets[0].reserved.value / GIB
    for _, figures in sent:
        assert figures["train/global_step"] == 7
        assert figures["memsheet/peak_reserved_gib"] == 3
        assert figures["memsheet/predicted_reserved_gib"] == reserved


def test_lightnings_trainer_hears_the_same(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    sent = list[tuple[int, dict[str, float]]]()
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace(Callback=object))
    monkeypatch.setattr(module, "gpu_memory_counters", lambda: gpu(peak_reserved=3 * GIB))
    monkeypatch.setattr(
        "memsheet.run.lightning_callback.send_to_trackers", lambda figures, step: sent.append((step, figures))
    )
    told = memsheet.lightning_callback("llama-3.2-1b", **JOB)
    begun = said(monkeypatch, caplog, gpu(), "on_train_begin")
    ended = said(monkeypatch, caplog, gpu(peak_reserved=3 * GIB), "on_train_end")
    monkeypatch.setattr(module, "gpu_memory_counters", lambda: gpu(peak_reserved=3 * GIB))
    caplog.clear()
    trainer = SimpleNamespace(local_rank=0, is_global_zero=True, log_every_n_steps=2, global_step=0)
    with caplog.at_level(logging.INFO, logger="memsheet"):
        told.on_train_start(trainer, None)
        for step in (1, 2, 3, 4):
            trainer.global_step = step
            told.on_train_batch_end(trainer, None, None, None, step)
        told.on_train_end(trainer, None)
    assert [record.getMessage() for record in caplog.records] == [
        one.getMessage() for one in (*begun, *ended)
    ]
    assert [step for step, _ in sent] == [2, 4]
    caplog.clear()
    told.on_train_start(SimpleNamespace(local_rank=1), None)
    assert not caplog.records


def test_without_lightning_it_is_asked_for() -> None:
    with pytest.raises(memsheet.InputError, match="pip install lightning"):
        memsheet.lightning_callback("llama-3.2-1b", **JOB)


def test_what_steps_leave_behind_is_told_once() -> None:
    watch = StepWatch()
    told = [
        line
        for n in range(30)
        for line in watch.warnings_of_step(gpu(allocated=(10 + n) * GIB, peak_reserved=50 * GIB))
    ]
    (line,) = told
    assert "grows by 1.00 GiB a step" in line
    assert "29 steps" in line
    varied = StepWatch()
    assert not [line for n in range(30) for line in varied.warnings_of_step(gpu(allocated=10 * GIB + n % 3))]


def test_memory_in_pieces_is_told_once_and_where_the_card_is_nearly_full() -> None:
    watch, roomy = StepWatch(), StepWatch()
    full = gpu(peak_allocated=40 * GIB, peak_reserved=75 * GIB)
    told = [line for _ in range(9) for line in watch.warnings_of_step(full)]
    assert len(told) == 1
    assert "expandable_segments" in told[0]
    assert not [line for _ in range(9) for line in roomy.warnings_of_step({**full, "room": 200 * GIB})]


def test_the_callback_warns_after_a_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert said(monkeypatch, caplog, gpu(), "on_step_end") == []
    assert said(monkeypatch, caplog, None, "on_step_end") == []
