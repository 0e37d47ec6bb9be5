"""A trace is made once for what was asked, the libraries and our own code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.questions import kept_traces, user_cache
from memsheet.timeline import events_document, timeline_from

EVENTS = {
    "schema": "memsheet/events/1",
    "words": ["parameters", "model.weight", "", "temporaries"],
    "storages": [[512, 0, 1, 2, 0, 2], [1024, 3, 2, 2, 0, 2]],
    "events": [0, 1, -2],
    "marks": [[1, "load"], [3, "forward"]],
}
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256,
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, object]]:
    """What a child is asked, which answers at once."""
    seen: list[dict[str, object]] = []

    def answer(request: dict[str, object], **_: object) -> dict[str, object]:
        seen.append(dict(request))
        return {"timelines": [{"rank": 0, "stage": 0, "events": EVENTS, "facts": {}}]}

    monkeypatch.setattr(kept_traces, "answer_of_child", answer)
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path))
    return seen


def trace(**options: object) -> object:
    return memsheet.trace(CONFIG, **{"seq_len": 16, **options}).sheets


def test_events_are_as_the_fixture_says() -> None:
    assert events_document(timeline_from(EVENTS))["events"] == EVENTS["events"]


def test_the_same_question_is_traced_once(asked: list[dict[str, object]]) -> None:
    first = trace()
    assert trace() == first
    assert len(asked) == 1
    trace(seq_len=32)
    trace(engine="fsdp2", gpus="2xH100-80GB")
    assert len(asked) == 3
    trace(fresh=True)
    assert len(asked) == 4


@pytest.mark.parametrize("what", ["installed_versions", "source_digest"])
def test_other_libraries_or_other_code_trace_anew(
    asked: list[dict[str, object]], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace()
    monkeypatch.setattr(user_cache, what, lambda _: "another")
    trace()
    assert len(asked) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"timelines": 3}', '{"timelines": [{"rank": 0}]}'])
def test_what_is_kept_and_broken_is_traced_anew(
    asked: list[dict[str, object]], tmp_path: Path, text: str
) -> None:
    first = trace()
    (kept,) = (tmp_path / kept_traces.KIND).glob("*.json")
    kept.write_text(text)
    assert trace() == first
    assert len(asked) == 2
    assert json.loads(kept.read_text())["timelines"]


def test_as_many_are_kept_as_there_is_room_for(
    asked: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_traces, "MOST_KEPT", 2)
    for length in (16, 32, 48):
        trace(seq_len=length)
    assert len(asked) == 3
    assert len(list((tmp_path / kept_traces.KIND).iterdir())) == 2


def test_what_went_wrong_is_not_kept(
    asked: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = {"where": "a.py:1", "reason": "is wrong", "hint": ""}
    monkeypatch.setattr(kept_traces, "answer_of_child", lambda *_, **__: {"failure": failure})
    with pytest.raises(InputError, match="is wrong"):
        trace()
    assert not asked
    assert not (tmp_path / kept_traces.KIND).exists()


@pytest.mark.parametrize("named", ["off", "/proc/none"])
@pytest.mark.usefixtures("asked")
def test_where_nothing_can_be_kept_nothing_is(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(user_cache.VARIABLE, named)
    assert trace() == trace()
