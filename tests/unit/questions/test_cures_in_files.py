"""Changes in the words of the files that they are of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memsheet.cli import main


def test_a_shorter_context_is_told_in_ollamas_own_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells of all slots are num_ctx of each (llm/llama_server.go:375)."""
    (tmp_path / "a.sh").write_text("OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=65536 ollama run qwen3:14b\n")
    main(["check", str(tmp_path / "a.sh"), "--gpus", "1xRTX4090"])
    shown = " ".join(capsys.readouterr().out.split())
    told = re.search(r"sequences of ([\d,]+) tokens .*? replace num_ctx: 65536 by num_ctx: (\d+)", shown)
    assert told is not None
    assert int(told[1].replace(",", "")) == 4 * int(told[2])
    assert "memsheet's own flag" not in shown
