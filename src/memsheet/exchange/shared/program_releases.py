"""Which release of its program reads a file: as a requirement in a text says it; and whether its keys are
known to the letter then.
"""

from __future__ import annotations

import re

from memsheet.exchange.shared.file_format import Format, Read

PACKAGES = {"llamafactory": "llamafactory", "megatron": "megatron-core", "torchtitan-toml": "torchtitan"}
"""By format, the package that its program is installed as, where that is not the first word of what was read
of it.
"""
_RELEASE = r"\s{0,4}==\s{0,4}v?(\d{1,4}(?:\.\d{1,6}){1,3})"
_NUMBER = re.compile(r"(\d+)\.(\d+)")


def stated_release(form: Format, text: str) -> str:
    """The release that a requirement says (``pip install trl==0.24.0``), the last one; nothing where none
    does.
    """
    package = PACKAGES.get(form.name) or form.tested.split()[0].lower()
    found = re.findall(rf"(?<![\w.-]){re.escape(package)}(?:\[[\w,-]{{0,80}}\])?{_RELEASE}", text)
    return str(found[-1]) if found else ""


def keys_known(read: Read) -> bool:
    """Whether every key that the file's program takes is known: its release is said, and is the one whose
    source was read, or an older one that the format has too.
    """
    listed = read.form.keys_of or read.form.tested
    said, own = _NUMBER.search(read.release), _NUMBER.search(listed)
    if said is None:
        return bool(read.release) and read.release in listed
    return own is not None and said.groups() == own.groups()


def is_key_typo(at: str, known: str) -> bool:
    """Whether a key is another one but for a word with a letter too many, too few, or two of them swapped,
    which no release takes. Other differences may be names of another release: a letter for another (``nsa``,
    ``dsa``), a digit (``fp4``), the first letter (``bfloat16``), the end of a word (``enable``, ``module``).
    """
    mine, theirs = _WORD.split(at), _WORD.split(known)
    apart = [(one, other) for one, other in zip(mine, theirs, strict=False) if one != other]
    return (
        len(mine) == len(theirs)
        and len(apart) == 1
        and min(len(at), len(known)) >= SHORTEST_KEY
        and _is_letter_slip(*apart[0])
    )


def _is_letter_slip(one: str, other: str) -> bool:
    same = next(
        (n for n, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs),
        min(len(one), len(other)),
    )
    if same == 0 or min(len(one), len(other)) < SHORTEST_WORD:
        return False
    mine, theirs = one[same:], other[same:]
    if len(mine) == len(theirs):
        return len(mine) > 1 and mine[:2] == theirs[1::-1] and mine[2:] == theirs[2:]
    longer, shorter = max((mine, theirs), key=len), min((mine, theirs), key=len)
    return longer[1:] == shorter and longer[0].isalpha() and bool(shorter or longer not in ("s", "d"))


_WORD = re.compile(r"[._-]")
SHORTEST_KEY, SHORTEST_WORD = 6, 3
