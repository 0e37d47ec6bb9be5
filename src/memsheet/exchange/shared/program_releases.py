"""Which release of its program reads a file: as a requirement in a text says it; and whether its keys are
known to the letter then.
"""

from __future__ import annotations

import re

from memsheet.exchange.shared.file_format import (
    EVERYWHERE,
    FileReading,
    Format,
    Values,
    is_key,
    nearest_known_key,
)
from memsheet.patterns import late_pattern

PACKAGES = {"llamafactory": "llamafactory", "megatron": "megatron-core", "torchtitan-toml": "torchtitan"}
"""By format, the package that its program is installed as, where that is not the first word of what was read
of it.
"""
_RELEASE = r"\s{0,4}==\s{0,4}v?(\d{1,4}(?:\.\d{1,6}){1,3})"
_NUMBER = late_pattern(r"(\d+)\.(\d+)")
_RELEASE_NUMBERS = late_pattern(r"\d{1,4}(?:\.\d{1,6}){1,3}")


def stated_release(form: Format, text: str) -> str:
    """The release that a requirement says (``pip install trl==0.24.0``), the last one; nothing where none
    does.
    """
    return package_release(PACKAGES.get(form.name) or form.tested.split()[0].lower(), text)


def package_release(package: str, text: str) -> str:
    """The release of a package that a requirement says; nothing where none does."""
    if "==" not in text:
        return ""
    found = re.findall(rf"(?<![\w.-]){re.escape(package)}(?:\[[\w,-]{{0,80}}\])?{_RELEASE}", text)
    return str(found[-1]) if found else ""


def keys_known(read: FileReading) -> bool:
    """Whether every key that the file's program takes is known: its release is said, and is the one whose
    source was read, or an older one that the format has too.
    """
    if not read.form.keys_complete:
        return False
    listed = read.form.keys_of or read.form.tested
    said, own = _NUMBER.search(read.release), _NUMBER.search(listed)
    if said is None:
        return bool(read.release) and read.release in listed
    return own is not None and said.groups() == own.groups()


def is_strict_group(read: FileReading, group: str) -> bool:
    """Whether the file's program stops at an unknown key in a group: in the release that is said, where one
    is.
    """
    form = read.form
    said, since = release_numbers(read.release), release_numbers(form.strict_since.get(group, ""))
    return (group in form.strict or EVERYWHERE in form.strict) and not (said and since and said < since)


def is_key_of_no_release(read: FileReading, group: str, near: str) -> bool:
    """Whether no release of a file's program has taken an unknown key of a group, nor has ignored it. Where
    no release is said, of a key that is like a known one alone, as a newer release may have others; of a
    group that older ones ignore, like one of its own.
    """
    since = read.form.strict_since.get(group)
    if since is None:
        return False
    said, own = release_numbers(read.release), release_numbers(read.form.tested)
    if said:
        return release_numbers(since) <= said <= own
    return bool(near) and (not since or near.rpartition(".")[0] == group)


def release_numbers(text: str) -> tuple[int, ...]:
    found = _RELEASE_NUMBERS.search(text)
    return tuple(map(int, found[0].split("."))) if found else ()


def keys_of_one_program(form: Format, values: Values) -> bool:
    """Whether a file holds nothing but keys of its format, and such with a slip of the pen: no further
    dataclasses of somebody's own script.
    """
    return all(is_key(form, at) or is_key_typo(at, nearest_known_key(form, at)) for at in values)


def is_key_typo(at: str, known: str) -> bool:
    """Whether a key is another one but for a word with a letter too many, too few, or two of them swapped,
    which no release takes. Other differences may be names of another release: a letter for another (``nsa``,
    ``dsa``), a digit (``fp4``), the first letter (``bfloat16``), the end of a word (``enable``, ``module``).
    A size that is written in one word is such a slip, too (``batchsize``).
    """
    if at != known and _JOINED.sub(r"\1", at) == _JOINED.sub(r"\1", known):
        return len(known) >= SHORTEST_KEY
    mine, theirs = _WORD.split(at), _WORD.split(known)
    apart = [(one, other) for one, other in zip(mine, theirs, strict=False) if one != other]
    return (
        len(mine) == len(theirs)
        and len(apart) == 1
        and min(len(at), len(known)) >= SHORTEST_KEY
        and _is_letter_slip(*apart[0])
    )


def is_word_slip(value: str, known: str) -> bool:
    """Whether a word is another but for such a slip; of short ones, for a letter that stands twice or once in
    its place (``lorra``), as a new one may have a letter more (``dapo``).
    """
    same = value != known and _SIGN.sub("", value) == _SIGN.sub("", known)
    return (
        same
        or is_key_typo(value, known)
        or _is_doubled_letter(value, known)
        or _is_doubled_letter(known, value)
    )


def _is_doubled_letter(longer: str, shorter: str) -> bool:
    return len(longer) == len(shorter) + 1 and any(
        longer[n] == longer[n - 1] and longer[n].isalpha() and longer[:n] + longer[n + 1 :] == shorter
        for n in range(1, len(longer))
    )


def _is_letter_slip(one: str, other: str) -> bool:
    same = next(
        (n for n, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs),
        min(len(one), len(other)),
    )
    if min(len(one), len(other)) < SHORTEST_WORD:
        return False
    mine, theirs = one[same:], other[same:]
    if len(mine) == len(theirs):
        swapped = len(mine) > 1 and mine[:2] == theirs[1::-1] and mine[2:] == theirs[2:]
        return swapped and (same > 0 or len(mine) >= SHORTEST_KEY)
    if same == 0:
        return False
    longer, shorter = max((mine, theirs), key=len), min((mine, theirs), key=len)
    if not shorter:  # a letter more at the end, as a ``model`` is no ``mode``
        long = longer == one[same - 1] or same >= SHORTEST_KEY - 1
        return len(longer) == 1 and longer.isalpha() and longer not in ("s", "d") and long
    return longer[1:] == shorter and longer[0].isalpha()


_WORD, _SIGN = late_pattern(r"[._-]"), late_pattern(r"[_-]")
_JOINED = late_pattern(r"[_-](size|steps|length|rank)(?![a-z])")
SHORTEST_KEY, SHORTEST_WORD = 6, 3
