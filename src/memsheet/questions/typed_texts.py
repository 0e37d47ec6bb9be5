"""What is typed in place of a file: a command behind ``--`` or as one word, and what stands on stdin."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from memsheet.errors import input_error
from memsheet.guard import is_file, is_folder, read_stdin
from memsheet.questions.files_on_disk import MOST_BYTES
from memsheet.questions.pasted import TYPED, named_by_content

STDIN, COMMAND = "stdin", "command"


def is_typed(word: str) -> bool:
    """Whether a word in the place of a file is a text of its own: ``"vllm serve Qwen/Qwen3-8B"``."""
    return " " in word.strip() and not is_file(Path(word)) and not is_folder(Path(word))


@contextmanager
def files_of_texts(files: Sequence[str], command: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The names of files, those of what was typed in a folder that lasts as long. ``command``: words behind
    ``--``, files where all of them are. Raises InputError for a stdin that is read twice, or too long.
    """
    named = [
        *files,
        *(command if all(is_file(Path(word)) or is_folder(Path(word)) for word in command) else ()),
    ]
    typed = {word: (COMMAND, word) for word in named if is_typed(word)}
    if command and len(named) == len(files):
        named.append(line := command[0] if len(command) == 1 else shlex.join(command))
        typed[line] = (COMMAND, line)
    if named.count("-") > 1:
        raise input_error("file", "-", "is named twice, and stdin can be read once")
    if "-" in named:
        typed["-"] = (STDIN, _text_of_stdin())
    if not typed:
        yield tuple(named)
        return
    with TemporaryDirectory(prefix=TYPED) as folder:
        places = {}
        for at, (word, (stem, text)) in enumerate(typed.items()):
            own = Path(folder) / (f"{at}" if at else ".")
            own.mkdir(exist_ok=True)
            places[word] = own / named_by_content(text, stem)
            places[word].write_text(text, encoding="utf-8")
        yield tuple(str(places.get(word, word)) for word in named)


def _text_of_stdin() -> str:
    held = read_stdin("file", MOST_BYTES)
    if len(held) > MOST_BYTES:
        raise input_error("file", "-", f"has more than the {MOST_BYTES:,} bytes that are read")
    try:
        return held.decode()
    except UnicodeDecodeError:
        raise input_error("file", "-", "is not text in UTF-8") from None
