"""`memsheet completion`: what a shell has to know to complete commands, flags and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from memsheet import catalog
from memsheet.cli import screen
from memsheet.cli.commands import COMMANDS, Command
from memsheet.cli.flags import WORDS, Flag
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.plan.engine_registry import modelled_engines
from memsheet.plan.plan import Loss, OptimizerName, RecomputeMode

GPUS, MODELS = "gpus", "MODEL"
"""The flag that takes a count and a device, and what stands for a model among a command's arguments."""


def completion(asked: Given) -> int:
    """The script that a shell reads at its start."""
    write = SHELLS.get(asked.shell)
    if write is None:
        raise input_error("shell", asked.shell, "is not known", f"one of {', '.join(SHELLS)}")
    screen.write_stdout(write())
    return 0


def flag_values() -> Mapping[str, Sequence[str]]:
    """Values of flags that take a name, by the flag."""
    return {
        "engine": [engine.name for engine in modelled_engines()],
        "optimizer": [name.value for name in OptimizerName],
        "recompute": [mode.value for mode in RecomputeMode],
        "loss": [loss.value for loss in Loss],
        "units": ["GiB", "GB"],
        GPUS: [device.name for device in catalog.catalog_devices()],
    }


def _own_flags(command: Command) -> list[Flag]:
    """Flags without the words of other tools, which would hide them."""
    return [flag for flag in command.flags if flag.group != WORDS]


def _takes_model(command: Command) -> bool:
    return any(argument.metavar == MODELS for argument in command.arguments)


def _indented(lines: Iterator[str], depth: int = 8) -> str:
    return "\n".join(" " * depth + line for line in lines)


def bash_script() -> str:
    """For bash. Files are offered where nothing else is."""
    values = flag_values()
    named = _indented(
        f"--{flag}) words='{' '.join(words)}' ;;" for flag, words in values.items() if flag != GPUS
    )
    flags = _indented(
        f"{name}) words='{' '.join(f'--{flag.name}' for flag in _own_flags(command))}'"
        f"{' models=1' if _takes_model(command) else ''} ;;"
        for name, command in COMMANDS.items()
    )
    return f"""\
_memsheet() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words='' models='' count=''
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{" ".join(COMMANDS)}' -- "$word"))
        return
    fi
    case $before in
        --{GPUS})
            [[ $word =~ ^[0-9]+x ]] && count=${{BASH_REMATCH[0]}}
            COMPREPLY=($(compgen -P "$count" -W '{" ".join(values[GPUS])}' -- "${{word#"$count"}}"))
            return ;;
{named}
    esac
    if [ -n "$words" ]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{flags}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    elif [ -n "$models" ]; then
        COMPREPLY=($(compgen -W '{" ".join(catalog.model_names())}' -- "$word"))
    fi
}}
complete -o default -F _memsheet memsheet
"""


def zsh_script() -> str:
    """For zsh, which reads bash's."""
    return (
        f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash_script()}"
    )


def fish_script() -> str:
    """For fish."""
    values = flag_values()
    lines = [
        f"complete -c memsheet -n __fish_use_subcommand -a {name} -d {_fish_quoted(command.words)}"
        for name, command in COMMANDS.items()
    ]
    for name, command in COMMANDS.items():
        within = f"complete -c memsheet -n '__fish_seen_subcommand_from {name}'"
        if _takes_model(command):
            lines.append(f"{within} -a {_fish_quoted(' '.join(catalog.model_names()))}")
        for flag in _own_flags(command):
            words = [f"8x{gpu}" for gpu in values[GPUS]] if flag.name == GPUS else values.get(flag.name, ())
            takes = f" -x -a {_fish_quoted(' '.join(words))}" if words else " -r" if flag.metavar else ""
            lines.append(f"{within} -l {flag.name}{takes} -d {_fish_quoted(flag.words)}")
    return "\n".join(lines) + "\n"


def _fish_quoted(words: str) -> str:
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Mapping[str, Callable[[], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
