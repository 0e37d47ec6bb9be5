"""Python that is read as text: values that hold one another, and texts that are long or deep."""

from __future__ import annotations

from collections.abc import Iterator

from amplifiers import Amplifier, checked

TITAN = "from torchtitan.models.llama3.config_registry import llama3_8b\n"


def doubled(value: str, levels: int, width: int = 10) -> Iterator[str]:
    """``levels`` names, each of which is made of the one before it ``width`` times."""
    yield f"a0 = {value}"
    yield from (
        f"a{level} = {'[' + ', '.join([f'a{level - 1}'] * width) + ']'}" for level in range(1, levels)
    )


def trainer(lines: Iterator[str] | list[str], argument: str) -> bytes:
    return "\n".join(
        [
            "from transformers import TrainingArguments",
            *lines,
            f"x = TrainingArguments(output_dir={argument})",
            "",
        ]
    ).encode()


def titan(lines: Iterator[str] | list[str], argument: str) -> bytes:
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f"{TITAN}def f():\n{body}\n    c = llama3_8b()\n    c.training = {argument}\n    return c\n".encode()
    )


def dictionaries(levels: int) -> list[str]:
    return [
        "a0 = {'k': 1}",
        *(f"a{level} = {{'l': a{level - 1}, 'r': a{level - 1}}}" for level in range(1, levels)),
    ]


def functions(levels: int) -> bytes:
    made = "\n".join(
        f"def f{level}():\n    return [f{level - 1}(), f{level - 1}()]" for level in range(1, levels)
    )
    return (
        f"from transformers import TrainingArguments\ndef f0():\n    return 1\n{made}\nx = "
        f"TrainingArguments(output_dir=f{levels - 1}())\n"
    ).encode()


def nested_functions() -> bytes:
    heads = "".join(f"{' ' * depth}def f{depth}():\n" for depth in range(90))
    return (
        b"from transformers import TrainingArguments\n"
        + heads.encode()
        + (" " * 90 + "a(b(c(d(e(1)))))\n").encode() * 400
        + b"TrainingArguments()\n"
    )


def long_script(line: str, times: int) -> bytes:
    return (
        b"from transformers import TrainingArguments\nx = TrainingArguments(output_dir='o')\n"
        + line.encode() * times
    )


def lines_after(line: str, times: int, first: bytes = b"") -> bytes:
    return (
        b"from transformers import TrainingArguments\nx = TrainingArguments(output_dir='o')\n"
        + first
        + line.encode() * times
    )


MEMBERS: dict[str, Amplifier] = {
    "lists of lists": checked("train.py", lambda: trainer(doubled("[1]*1", 1), "a0")),
    "shared lists in an argument": checked("train.py", lambda: trainer(doubled("[1, 2]", 9), "a8")),
    "shared lists in a target": checked(
        "train.py", lambda: trainer([*doubled("['q']", 9), "from peft import LoraConfig", "y = LoraConfig(target_modules=a8)"], "'o'")
    ),
    "shared dictionaries": checked("train.py", lambda: trainer(dictionaries(30), "a29")),
    "shared dictionaries under a configuration": checked("train.py", lambda: trainer(dictionaries(30), "'o', fsdp_config=a29")),
    "shared lists in a torchtitan configuration": checked("torchtitan_config.py", lambda: titan(doubled("[1, 2]", 9), "a8")),
    "shared dictionaries in a torchtitan configuration": checked("torchtitan_config.py", lambda: titan(dictionaries(30), "a29")),
    "a dictionary in itself": checked("torchtitan_config.py", lambda: titan(["a = {'k': 1}", "a.k = a", "a.l = a"], "a")),
    "functions that call one another twice": checked("train.py", lambda: functions(30)),
    "a list that is grown by each call": checked(
        "torchtitan_config.py", lambda: TITAN.encode() + b"g = {'k': [1]}\ndef f():\n    g.k = [g.k, g.k]\n    return g.k\n"
        + b"def h():\n    c = llama3_8b()\n    c.training = [" + b"f(), " * 60 + b"]\n    return c\n"
    ),
    "functions inside functions": checked("train.py", nested_functions),
    "eight megabytes of calls": checked("train.py", lambda: long_script("f(1)\n", 1_600_000)),
    "eight megabytes of a sum": checked("train.py", lambda: lines_after("+1", 4_000_000, b"x = 1")),
    "calls in a script of the length that is read": checked("train.py", lambda: long_script("f(1)\n", 13_000)),
    "a long text, again and again": checked("train.py", lambda: trainer([f"a = '{'x' * 40_000}'"], "[" + "a, " * 5_000 + "]")),
    "brackets without end": checked("train.py", lambda: trainer([], "[" * 60_000)),
    "signs without end": checked("train.py", lambda: trainer([], "-" * 60_000 + "1")),
    "attributes without end": checked("train.py", lambda: trainer([], "a" + ".b" * 30_000)),
    "calls without end": checked("train.py", lambda: trainer([], "a" + "()" * 30_000)),
    "a number of 60,000 digits": checked("train.py", lambda: trainer([], "0x" + "f" * 60_000)),
    "numbers that multiply": checked("train.py", lambda: trainer([f"a = 0x{'f' * 20_000}", *["a = a * a"] * 30], "a")),
}  # fmt: skip
