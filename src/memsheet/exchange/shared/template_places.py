"""Places of a template that is filled in before its YAML is read (Jinja: ``batch_size: {{ size }}``): what
stands there is nobody's yet.
"""

from __future__ import annotations

import re

from memsheet.exchange.shared.file_format import UNSET
from memsheet.patterns import late_pattern

_PLACE = r"\{\{-?[ \t]*\.?([A-Za-z_]\w{0,40}(?:\.\w{1,40}){0,4})[ \t]*(?:\|[^{}\n]{0,120})?-?\}\}"
_WHOLE = late_pattern(rf"((?:^|[ \t])[\w.\"'-]{{1,80}}:[ \t]+|^[ \t]*-[ \t]+){_PLACE}(?=[ \t]*(?:#.*)?$)", re.MULTILINE)  # fmt: skip
_PART = late_pattern(_PLACE)


def with_open_places(text: str) -> str:
    """A text of YAML in which a value that is a place is a variable that nobody set, and a part of a longer
    word a shell's name.
    """
    whole = _WHOLE.sub(rf'\g<1>"{UNSET}"', text)
    return _PART.sub(lambda found: f"${{{found[1].replace('.', '_')}}}", whole)
