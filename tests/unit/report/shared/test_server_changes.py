"""What makes room for a server, typed as it is printed: in the server's command by its own words, on
memsheet's line what the command has no word for.
"""

from __future__ import annotations

import re
import shlex

import pytest

from memsheet.cli import main

SERVERS = [
    (["--gpus", "1xRTX4090"], "vllm serve meta-llama/Llama-3.1-8B-Instruct"),
    (
        ["--gpus", "1xRTX4090"],
        "vllm serve meta-llama/Llama-3.1-8B-Instruct -q fp8 --max-model-len 120000 --max-num-seqs 64",
    ),
    (
        ["--gpus", "2xRTX4090"],
        "vllm serve Qwen/Qwen2.5-32B-Instruct --tensor-parallel-size 2 --max-model-len 16384",
    ),
    (
        ["--gpus", "1xRTX4090"],
        "text-generation-launcher --model-id meta-llama/Llama-3.1-8B-Instruct --max-total-tokens 120000",
    ),
]
LORA = "--enable-lora --max-loras 4 --max-lora-rank 64"
WAY = re.compile(
    r"^  ((?:add|replace|leave out|serve)  .*?)\n*(?=^  (?:add|replace|leave out|serve)  |^$)",
    re.MULTILINE | re.DOTALL,
)
SURE = re.compile(
    r"\s+(?:(?:together )?gives \S+ \S+ a GPU: starts with|the longest with which it is sure).*", re.DOTALL
)


STORED = re.compile(r"serve a checkpoint stored in (\S+) \(--quantize \1 here accounts for it\)")
"""What no server's command says: memsheet's own flag says it to memsheet."""


def _printed_ways(screen: str) -> list[str]:
    """The changes that a screen says suffice for sure, each on one line."""
    _, _, told = screen.partition("makes room, each accounted again:\n")
    ways = [found[1] for found in WAY.finditer(told.partition("\n\n")[0] + "\n\n")]
    return [" ".join(SURE.sub("", way).split()) for way in ways if SURE.search(way)]


def _with_change(words: list[str], change: str) -> list[str]:
    """Words of a line with one change as it is printed."""
    if stored := STORED.fullmatch(change):
        return [*words, "--quantize", stored[1]]
    kind, old, new = re.fullmatch(r"(add|leave out|replace) (?:(.*) by )?(.*)", change).groups()
    gone = shlex.split(old or (new if kind == "leave out" else ""))
    for start in range(len(words)):
        if gone and words[start : start + len(gone)] == gone:
            words = words[:start] + words[start + len(gone) :]
            break
    else:
        assert not gone, (gone, words)
    return words + ([] if kind == "leave out" else shlex.split(new))


@pytest.mark.parametrize(("own", "command"), SERVERS)
def test_every_sure_way_starts_as_it_is_printed(
    own: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *own, "--", *shlex.split(command)]) in (10, 11)
    ways = _printed_ways(capsys.readouterr().out)
    assert len(ways) > 1
    for way in ways:
        mine, _, served = way.partition(", and in the command ")
        outside = "memsheet's own flag" in mine or "--gpus" in mine or bool(STORED.fullmatch(mine))
        line = _with_change(own, mine.replace(" (memsheet's own flag)", "")) if outside else own
        inside = mine if not outside else served
        typed = _with_change(shlex.split(command), inside) if inside else shlex.split(command)
        main(["check", *line, "--", *typed])
        told = capsys.readouterr().out
        assert not re.search("lacks|refuse|DOES NOT FIT", told), (way, told)


def test_two_changes_are_tried_together_where_none_suffices_on_the_same_cards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["check", "--gpus", "1xRTX4090", "--", *shlex.split(SERVERS[0][1])])
    told = capsys.readouterr().out
    assert "--kv-cache-dtype fp8" in told
    assert not re.search("--kv-dtype|--memory-fraction", told)
    together = next(way for way in _printed_ways(told) if "awq" in way)
    assert "--gpus" not in together


@pytest.mark.parametrize(
    ("gpus", "command"),
    [
        ("2xRTX4090", "vllm serve meta-llama/Llama-3.1-8B-Instruct -dp 2"),
        ("2xRTX4090", f"vllm serve meta-llama/Llama-3.1-8B-Instruct {LORA} -dp 2"),
        ("4xRTX4090", "vllm serve Qwen/Qwen2.5-14B-Instruct -tp 2 -dp 2"),
    ],
)
def test_copies_that_have_no_room_are_cut_over_the_same_cards_first(
    gpus: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No card is bought where those that are there hold one copy less, and what is printed does it."""
    assert main(["check", "--gpus", gpus, "--", *shlex.split(command)]) in (10, 11)
    told = capsys.readouterr().out
    ways = _printed_ways(told)
    assert re.match(r"replace .*--data-parallel-size 2.* by --", ways[0]), ways
    assert not any("--gpus" in way for way in ways), ways
    assert not re.search(r"\d+xRTX4090 with", told)
    words = command.replace("-tp 2 -dp 2", "--tensor-parallel-size 2 --data-parallel-size 2")
    words = words.replace(" -dp 2", " --data-parallel-size 2")
    assert main(["check", "--gpus", gpus, "--", *_with_change(shlex.split(words), ways[0])]) == 0


@pytest.mark.parametrize(
    ("gpus", "command"),
    [
        ("8xH100-80GB", "vllm serve deepseek-ai/DeepSeek-R1 -tp 8"),
        ("8xH100-80GB", "python -m sglang.launch_server --model deepseek-ai/DeepSeek-R1 --tp 8"),
        ("1xRTX4090", "vllm serve meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_weights_that_no_command_makes_are_a_checkpoint_to_serve(
    gpus: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "--gpus", gpus, "--", *shlex.split(command)])
    told = " ".join(capsys.readouterr().out.split())
    assert "serve a checkpoint stored in awq-int4" in told
    assert "--quantize awq-int4 (memsheet" not in told
