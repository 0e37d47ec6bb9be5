"""What a screen says to change can be typed on the line that it answers, whoever's words that line is in."""

from __future__ import annotations

import json
import random
import shlex

import pytest

from memsheet.cli import main
from memsheet.plan.aliases import ALIASES, TRAIN

SIZES = {"microbatch": ("64", "48"), "global_batch": ("64",), "recompute.mode": ("none",), "zero": ("1", "2"), "loss": ("plain",), "adapter.rank": ("8",),
         "quantization.weights": ("int8",), "optimizer.name": ("adamw",), "attention": ("sdpa",), "@accumulation": ("2",)}  # fmt: skip
WORDS = tuple(
    (name, value)
    for name, word in ALIASES.items()
    for meaning in word.meanings
    if meaning.task in ("", TRAIN) and meaning.key in SIZES and not meaning.refused
    for value in SIZES[meaning.key]
) + tuple(
    (name, value)
    for key, name in (("microbatch", "microbatch"), ("recompute.mode", "recompute"), ("zero", "zero"))
    for value in SIZES[key]
)
ENGINES = (None, "fsdp2", "deepspeed", "accelerate", "megatron", "trl")


def as_changed(line: list[str], said: str) -> list[str]:
    """The line after what a screen says to add or to replace."""
    if said.startswith("add "):
        return [*line, *shlex.split(said.removeprefix("add "))]
    gone, new = said.removeprefix("replace ").split(" by ")
    left = line
    for flag, value in zip(*[iter(shlex.split(gone))] * 2, strict=True):
        at = left.index(flag)
        assert left[at + 1] == value
        left = [*left[:at], *left[at + 2 :]]
    return [*left, *shlex.split(new)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 0])
def test_a_change_can_be_typed_as_it_is_printed(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    rng, met = random.Random(seed), 0
    for _ in range(25):
        engine, words = rng.choice(ENGINES), rng.sample(WORDS, 2)
        line = [
            "train",
            "llama-3.1-8b",
            "--seq-len",
            "2048",
            "--gpus",
            rng.choice(("8xA100-40GB", "4xH100-80GB")),
            *(("--engine", engine) if engine else ()),
        ]
        line += [part for name, value in words for part in (f"--{name}", value)]
        if main([*line, "--json"]) == 2:
            capsys.readouterr()
            continue
        document = json.loads(capsys.readouterr().out)
        if not document["verdict"].get("cheapest_fix"):
            continue
        main(line)
        screen = " ".join(capsys.readouterr().out.split("\n\n"[0]))
        block = screen[min(at for word in ("add  ", "replace  ") if (at := screen.find(word)) >= 0) :]
        said = " ".join(block.split("  train ")[0].split())
        changed, promised = as_changed(line, said), document["verdict"]["cheapest_fix"]["device_bytes"]
        assert main([*changed, "--json"]) != 2, (" ".join(line), said, capsys.readouterr().err)
        assert json.loads(capsys.readouterr().out)["verdict"]["device_bytes"] == promised, (
            " ".join(line),
            said,
        )
        met += 1
    assert met > 2
