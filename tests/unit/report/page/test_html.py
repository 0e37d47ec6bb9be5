"""What a notebook shows: one piece of HTML that stands alone."""

from html.parser import HTMLParser
from typing import Any

import pytest

import memsheet

JOBS = (
    ("train", "llama-3.1-8b", {"gpus": "8xA100-40GB", "seq_len": 4096}),
    ("train", "llama-3.1-70b", {"gpus": "64xH100-80GB", "engine": "megatron", "tp": 8, "pp": 4, "seq_len": 4096, "global_batch": 64}),
    ("train", "llama-tiny", {"seq_len": 128}),
    ("infer", "llama-3.1-8b", {"gpus": "1xL4", "engine": "vllm", "max_model_len": 4096}),
)  # fmt: skip
EMPTY = {"path", "br", "meta", "rect"}


class Balanced(HTMLParser):
    """Tags that are open, and all that were met."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.met: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.met.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        if tag not in EMPTY - {"rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, _: Any) -> None:
        self.met.add(tag)


@pytest.mark.parametrize(("task", "model", "options"), JOBS)
def test_it_is_small_whole_and_alone(task: str, model: str, options: dict[str, Any]) -> None:
    answer = getattr(memsheet, task)(model, **options)
    text = answer._repr_html_()
    found = Balanced()
    found.feed(text)
    assert found.open == []
    assert not found.met & {"script", "style", "link", "img", "iframe"}
    assert len(text.encode()) <= 20_000
    for sheet_row in ("= allocated", "parameters"):
        assert sheet_row in text


def test_a_strangers_name_is_text() -> None:
    config = {"model_type": "llama", "_name_or_path": "<img src=x onerror=alert(1)>", "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}  # fmt: skip
    text = memsheet.train(config, seq_len=64)._repr_html_()
    assert "<img" not in text
