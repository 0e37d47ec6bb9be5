"""TRL's jobs by its own words."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet

CARD = "1xH100-80GB"


def asked(**options: Any) -> memsheet.Answer:
    return memsheet.job("trl-grpo", model="qwen3-0.6b", gpus=CARD, max_completion_length=1024, **options)


def held(answer: memsheet.Answer, role: str) -> bool:
    return any(item.path.startswith(f"{role}/") for sheet in answer.sheets for item in sheet.items)


def test_beta_0_removes_exactly_the_reference() -> None:
    """What is left is row by row the same, and so are the phases but its own."""
    without, with_it = asked(beta=0.0), asked(beta=0.1)
    assert not held(without, "reference")
    phases = {when.phase for when in without.sheets[0].instants}
    assert {when.phase for when in with_it.sheets[0].instants} - phases == {"ref"}

    def rows(answer: memsheet.Answer) -> dict[Any, Any]:
        return {
            (item.path, item.component, when): size
            for item in answer.sheets[0].items
            for when, size in item.at.items()
            if when.phase != "ref" and not item.path.startswith("reference/")
        }

    assert rows(without) == rows(with_it)


def test_adapters_are_switched_off_as_reference() -> None:
    answer = asked(beta=0.1, lora_rank=16)
    assert not held(answer, "reference")
    assert "ref" in {when.phase for when in answer.sheets[0].instants}


def test_sleep_frees_the_server_in_the_update_alone() -> None:
    awake, asleep = (asked(vllm_enable_sleep_mode=on).sheets[0] for on in (False, True))

    def size(sheet: memsheet.Sheet, name: str) -> int:
        return int(sheet.at(memsheet.Instant(name), without=()).value)

    assert size(asleep, "update_actor/backward") < size(awake, "update_actor/backward")
    assert size(asleep, "gen/decode") == size(awake, "gen/decode")
    assert asleep.host_bytes > 0
    assert asleep.host_bytes < 2**30  # the model's buffers alone


def test_a_server_elsewhere_is_not_counted() -> None:
    answer = asked(vllm="server")
    assert not held(answer, "rollout")
    assert any("cards of its own" in note for note in answer.notes)


def test_a_loss_without_whole_logits() -> None:
    whole, none = (asked(use_liger_kernel=on) for on in (False, True))
    found = [item for item in whole.sheets[0].items if item.path == "actor/logits"]
    at = memsheet.Instant("update_actor/loss")
    assert [item.at[at].value for item in found] == [16 * 8 * 1025 * 151936]
    assert not any(at in item.at for item in none.sheets[0].items if item.path == "actor/logits")
    assert none.sheets[0].device.value < whole.sheets[0].device.value


def test_a_loss_without_whole_logits_has_gradients_of_the_output_matrix_while_it_is_made() -> None:
    """A row's, in fp32, beside that of all rows, which stands for the matrix's own."""
    (item,) = [one for one in asked(use_liger_kernel=True).sheets[0].items if one.path == "actor/liger"]
    assert [when.value for when in item.at] == ["update_actor/loss"]
    assert [size.low for size in item.at.values()] == [151936 * 1024 * 4]
    adapted = asked(use_liger_kernel=True, lora_rank=16).sheets[0]
    (more,) = [one for one in adapted.items if one.path == "actor/liger"]
    assert [size.low for size in more.at.values()] == [2 * 151936 * 1024 * 4]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"num_generations": 7}, "num_generations"), ({"beat": 0.1}, "beat"), ({"beta": "much"}, "beta")],
)
def test_what_cannot_be(options: dict[str, Any], field: str) -> None:
    with pytest.raises(memsheet.InputError) as told:
        asked(**options)
    assert field in [problem.field for problem in told.value.problems]


def test_gradients_of_earlier_micro_batches_stand_while_the_next_one_runs() -> None:
    said = {"model": "Qwen/Qwen3-0.6B", "gpus": "1xH100-80GB", "vllm": "server", "max_completion_length": 256}
    one, four = (memsheet.job("trl-grpo", **said, gradient_accumulation_steps=n) for n in (1, 4))
    forward = memsheet.Instant("update_actor/forward")
    gradients = [
        sum(item.at[forward].value for item in answer.sheets[0].items
            if item.component is memsheet.Component.GRADIENTS and forward in item.at)
        for answer in (one, four)
    ]  # fmt: skip
    assert gradients[0] < gradients[1]


@pytest.mark.parametrize(("new", "value"), [(7, 20), (31, 20), (63, 16), (1023, 16)])
def test_an_entropy_of_few_tokens_is_more_than_their_gradients(new: int, value: int) -> None:
    """Of 128 positions at a time: 12 bytes of each beside 8, where gradients make it 16."""
    from memsheet.jobs.templates.trl import GRPO, grpo_phases

    values = {name: option.usual for name, option in GRPO.items()}
    update = grpo_phases(
        {**values, "max_prompt_length": 64, "max_completion_length": new, "per_device_train_batch_size": 4}
    )[-1]
    assert update["logits"]["bytes"][1] == value
