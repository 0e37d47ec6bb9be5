"""Files that a script writes itself, as text that stands in it (``cat > a.yaml <<EOF``)."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.patterns import late_pattern

_OPENS = late_pattern(r"<<-?\s*(?P<quote>[\"']?)(?P<end>\w{1,40})(?P=quote)")
_WRITES = late_pattern(r">{1,2}\s*([^\s<>|&;]{1,200})|\btee\s+(?:-a\s+)?([^\s<>|&;]{1,200})")
MOST_FILES, MOST_LINES = 16, 400


def here_documents(text: str) -> Mapping[str, str]:
    """The texts that a script writes, by the file's name without its folder."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        opens = _OPENS.search(line)
        writes = _WRITES.search(line) if opens else None
        if opens is None or len(found) == MOST_FILES:
            continue
        held: list[str] = []
        for inner in lines:
            if inner.strip() == opens["end"] or len(held) == MOST_LINES:
                break
            held.append(inner)
        if writes is not None:
            name = (writes[1] or writes[2]).strip("\"'")
            found[name.rpartition("/")[2]] = "\n".join(held)
    return found
