"""`memsheet skill`."""

from __future__ import annotations

from pathlib import Path

from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.report.shared.files import write_whole

SKILL = Path(__file__).parents[1] / "agents" / "skill" / "SKILL.md"


def skill(asked: Given) -> int:
    """What an agent has to know to ask memsheet, as text, or installed where its program looks for skills."""
    text = SKILL.read_text(encoding="utf-8")
    if asked.install is None:
        screen.write_stdout(text)
        return 0
    folder = Path(asked.install) / "memsheet"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = f"cannot be made: {getattr(error, 'strerror', None) or error}"
        raise input_error("install", asked.install, reason) from None
    write_whole(folder / SKILL.name, text.encode(), "install")
    screen.write_stdout(f"{folder / SKILL.name}\n")
    return 0
