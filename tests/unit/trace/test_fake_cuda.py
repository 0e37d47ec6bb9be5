"""Which of the two patches a torch gets: by what it was built with and whether it sees a card."""

from __future__ import annotations

import pytest
import torch

from memsheet.trace import fake_cuda


@pytest.mark.parametrize(
    ("cards", "built", "given"),
    [
        (0, False, ["guard", "hooks"]),
        (0, True, ["hooks"]),  # as pip installs it, on a machine without a card
        (1, True, []),
    ],
)
def test_a_torch_without_a_card_is_given_what_it_has_not(
    cards: int, built: bool, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(fake_cuda, "_give_guard", lambda _: done.append("guard"))
    monkeypatch.setattr(fake_cuda, "_give_hooks", lambda _: done.append("hooks"))
    fake_cuda.install_fake_cuda.__wrapped__()
    assert done == given
