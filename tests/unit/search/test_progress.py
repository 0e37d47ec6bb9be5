"""What a search tells while it runs."""

from collections.abc import Mapping
from typing import Any

from memsheet import plan
from memsheet.search.progress import listen_to_search, tell_progress


def test_each_engine_adds_to_what_was_weighed() -> None:
    told = list[Mapping[str, Any]]()
    with listen_to_search(told.append):
        found = plan("llama-3.2-1b", gpus="8xA100-80GB", seq_len=1024, global_batch=8)
    first = told[: len(found.ranking.engines)]
    assert [facts["engine"] for facts in first] == list(found.ranking.engines)
    weighed = [facts["plans"] for facts in first]
    assert weighed == sorted(weighed)
    assert weighed[-1] == found.ranking.legal
    seconds = [facts["step_seconds"] for facts in first]
    assert seconds == sorted(seconds, reverse=True)


def test_nothing_is_made_for_nobody() -> None:
    made = list[int]()
    tell_progress(lambda: {"plans": made.append(1)})
    assert made == []
