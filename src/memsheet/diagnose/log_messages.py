"""Every place that a log's messages are read at: the messages that failed and were not caught, in order, and
what lines besides say of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.message import Form, Message, messages_of
from memsheet.diagnose.messages import (
    below_torch,
    colocated,
    deepspeed,
    host,
    jax,
    kernels,
    llama_cpp,
    memory_summary,
    nvidia_smi,
    ollama,
    other_devices,
    other_runtimes,
    other_servers,
    retold,
    schedulers,
    sglang,
    step_lines,
    torch_allocator,
    unsupported_settings,
    vllm,
)
from memsheet.diagnose.survived import goes_on, goes_on_behind, tries_smaller

EMITTERS = (
    vllm, sglang, other_devices, kernels, other_servers, below_torch, schedulers, host, ollama, jax, llama_cpp, torch_allocator,
    deepspeed, memory_summary, nvidia_smi, step_lines, unsupported_settings,
)  # fmt: skip
"""Each place once; of two messages in one line the first here speaks."""


def _forms_of_all(name: str) -> tuple[Form, ...]:
    return tuple(form for emitter in EMITTERS for form in getattr(emitter, name, ()))


SIGNS: tuple[bytes, ...] = tuple(sign for emitter in EMITTERS for sign in emitter.SIGNS)
OWN_FORMS, STAND_INS, FORMS = map(_forms_of_all, ("OWN_FORMS", "STAND_INS", "FORMS"))
"""A server's own words, which say more than a request's bytes before them; what speaks for a request whose
message is cut; all other messages.
"""
SAME_FAILURE, SAME_PLACE = 200, 3
"""Lines behind a failed request within which a server's own words are of the same failure; lines within which
two forms are one message.
"""


def failing_messages(log: Log) -> tuple[int, list[Message]]:
    """How many failures were caught and went on, and the messages that were not, in order; of a plain one
    that says no size and another at the same place the other stays.
    """
    found = [
        *torch_allocator.allocator_messages(log),
        *messages_of(log, (*OWN_FORMS, *STAND_INS, *FORMS)),
        *host.killed_lines(log),
    ]
    if all(each.judge is None and "asked" not in each.facts for each in found):
        found += retold.retold_messages(log)
    if not found:
        found += schedulers.told_by_people(log)
    found.sort(key=lambda each: each.line)
    lasting = [each for each in found if not (_was_caught(each, log) or host.is_said_not_to_be(each, log))]
    lasting = [
        each for place, each in enumerate(lasting) if not _was_retried(each, lasting[place + 1 :], log)
    ]
    sized = [
        each for place, each in enumerate(lasting)
        if each.judge is not None or "asked" in each.facts
        or not any(abs(other.line - each.line) <= SAME_PLACE for other in (*lasting[max(0, place - 1) : place], *lasting[place + 1 : place + 2]))
    ]  # fmt: skip
    sized = [
        each for place, each in enumerate(sized)
        if each.kind not in other_devices.DRIVERS
        or not any("allocated" in other.facts and other.line - each.line <= SAME_PLACE for other in sized[place + 1 : place + 2])
    ]  # fmt: skip
    caught = len(found) - len(lasting)
    if any(each.kind not in schedulers.WARNINGS for each in sized):
        sized = [each for each in sized if each.kind not in schedulers.WARNINGS]
    if any(each.kind in host.KILLERS for each in sized) or schedulers.OTHER_END.search(log.squeezed):
        sized = [each for each in sized if each.kind != "signal"]
    if sized or caught:
        return caught, sized
    bare = list(below_torch.bare_lines(log))
    lasting = [each for each in bare if not _was_caught(each, log)]
    if not bare and (refused := unsupported_settings.refused_settings(log)):
        return 0, [refused]
    return len(bare) - len(lasting), lasting


def _was_retried(message: Message, behind: Sequence[Message], log: Log) -> bool:
    """Whether a request was made again with a smaller batch, and failed, too: the last says what is short."""
    return (
        message.judge is None
        and any(each.judge is None for each in behind)
        and tries_smaller(message.line, log)
    )


def _was_caught(message: Message, log: Log) -> bool:
    if message.kind == "llama":
        return llama_cpp.retry_succeeds(message, log)
    if message.kind == "TensorRT" and other_runtimes.tactic_left_out(log):
        return True
    if message.kind in schedulers.WARNINGS:
        return goes_on(log.lines[message.line + 1 :])
    return "warning" in message.words or goes_on_behind(message.line, log)


def first_of_each_card(messages: Sequence[Message]) -> list[Message]:
    """The first message, and that of every other card that is named in one of the same kind: each failed of
    its own.
    """
    first = messages[0]
    found = {first.words.get("device", ""): first}
    for each in messages[1:]:
        if each.kind == first.kind and "device" in each.words and "device" in first.words:
            found.setdefault(each.words["device"], each)
    return list(found.values())


def fullest_of_card(first: Message, messages: Sequence[Message]) -> Message:
    """The same, or where it ends before its figures the next of its size and card that does not."""
    if first.judge is not None or "allocated" in first.facts or "asked" not in first.facts:
        return first
    same = (
        each for each in messages
        if each.kind == first.kind and each.facts.get("asked") == first.facts["asked"]
        and first.words.get("device") in (None, each.words.get("device")) and "allocated" in each.facts
    )  # fmt: skip
    return next(same, first)


def stands_in(message: Message) -> bool:
    return any(message.judge is form.judge for form in STAND_INS)


def is_servers_own(message: Message) -> bool:
    return any(message.judge is form.judge for form in OWN_FORMS)


def figures_behind(first: Message, messages: Sequence[Message]) -> Message | None:
    """The allocator's own figures right behind a server's words of the same failure, where these come
    first.
    """
    if not stands_in(first):
        return None
    near = (each for each in messages if 0 <= each.line - first.line <= SAME_FAILURE)
    return next((each for each in near if each.judge is None and "allocated" in each.facts), None)


def stand_in_behind(first: Message, messages: Sequence[Message]) -> Message | None:
    """The words of a server behind a request that failed, which name what asked for it."""
    near = (each for each in messages if each is not first and 0 <= each.line - first.line <= SAME_FAILURE)
    return next((each for each in near if stands_in(each)), None)


def stand_in(first: Message, messages: Sequence[Message]) -> Message | None:
    """What speaks for a first message without figures: the words of its server behind it, or the same failure
    told again with its size.
    """
    if "free" in first.facts:
        return None
    behind = [each for each in messages if each is not first and 0 <= each.line - first.line <= SAME_FAILURE]
    sized = (
        each for each in behind
        if each.judge is not None and each.judge is first.judge and len(each.facts) > len(first.facts)
        and (not first.facts or each.line - first.line <= SAME_PLACE)
    )  # fmt: skip
    return stand_in_behind(first, messages) or next(sized, None)


def context_facts(log: Log) -> dict[str, Interval]:
    """What lines besides the message say of memory."""
    table = nvidia_smi.card_table(log)
    return {
        **colocated.handed_over_facts(log), **deepspeed.step_facts(log), **vllm.server_facts(log), **sglang.pool_facts(log), **memory_summary.summary_facts(log),
        **(nvidia_smi.table_facts(table) if table else {}),
    }  # fmt: skip
