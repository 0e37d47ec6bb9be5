"""Write every golden file and generated page again: `make regold`. Read the difference before you keep it."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "docs")]


def main() -> None:
    import generate

    from golden import algebra, catalog_tables, model_rows, model_spellings, sheets

    (TESTS / "golden" / "formulas.txt").write_text(algebra.text(), encoding="utf-8")
    model_spellings.write()
    model_rows.write()
    catalog_tables.write()
    sheets.write()
    generate.write()


if __name__ == "__main__":
    main()
