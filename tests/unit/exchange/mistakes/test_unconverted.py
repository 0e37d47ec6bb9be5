"""A table of torchtitan's that its own list of converters does not name."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

TITAN = """[model]
name = "llama3"
flavor = "8B"
{converters}
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
tensor_parallel_degree = 1
[{table}]
enable_fsdp_float8_all_gather = true
"""


@pytest.mark.parametrize("table", ["float8", "quantize.linear.float8"])
@pytest.mark.parametrize("named", [False, True])
def test_a_table_that_nobody_names_is_told(table: str, named: bool, tmp_path: Path) -> None:
    converters = f'converters = ["{table}"]' if named else ""
    (tmp_path / "titan.toml").write_text(TITAN.format(table=table, converters=converters))
    found = memsheet.check(tmp_path / "titan.toml", gpus="8xH100-80GB")
    assert ("unconverted-float8" in {rule.id for rule, _ in found.mistakes}) is not named
