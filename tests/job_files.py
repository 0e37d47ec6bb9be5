"""Files of frameworks that start several models, as they stand in ``tests/wild_configs``, checked as jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memsheet
from memsheet.report.shared.checked import Checked

WILD = Path(__file__).parent / "wild_configs"


def checked_file(folder: Path, name: str, *changes: tuple[str, str], gpus: str = "8xH100-80GB") -> Checked:
    """The answer about a stored file with some of its text changed."""
    text = (WILD / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / name
    file.write_text(text)
    return memsheet.check(file, gpus=gpus)


def job_document(found: Checked) -> dict[str, Any]:
    assert found.answer is not None
    assert found.answer.job is not None
    return dict(found.answer.job)


def phases_by_name(found: Checked) -> dict[str, dict[str, Any]]:
    return {phase["name"]: phase for phase in job_document(found)["phases"]}


def role_bytes(found: Checked, instant: str, role: str, component: str = "", card: int = 0) -> int:
    """Bytes of a role on a card at an instant, of components whose names have ``component``."""
    assert found.answer is not None
    sheet = next(one for one in found.answer.sheets if card in (one.rank, *one.same_as))
    when = memsheet.Instant(instant)
    return sum(
        int(item.at[when].value)
        for item in sheet.items
        if item.path.startswith(f"{role}/") and when in item.at and component in item.component.value
    )


def most_needed(found: Checked) -> int:
    """Bytes that the fullest card is expected to need."""
    assert found.answer is not None
    return max(int(sheet.device.value) for sheet in found.answer.sheets)
