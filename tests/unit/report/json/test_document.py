"""A document's class says both what is written and what its schema takes."""

from types import SimpleNamespace
from typing import Any

import pytest

from memsheet.report.json.document import ByteRange, Document, Natural, optional_key, read_from
from memsheet.report.schema.documents import document_model
from memsheet.sheet import Bytes, Instant


class Fan(Document):
    """A fan that turns
    at a speed.
    """

    name: str
    speed: float | None


class Card(Document):
    schema_: str = "memsheet/card/1"
    memory: ByteRange
    low_bytes: Natural = read_from("memory.low")
    driver: str | None = read_from("software.driver.name")
    held: dict[Instant, Natural] = read_from("at")
    fans: list[Fan] = optional_key()
    maker: str = optional_key()
    made: str | None = optional_key()
    place: int


VALUE = SimpleNamespace(
    memory=Bytes(1, 2, 3), software=None, at={Instant.BACKWARD: Bytes.exact(4)}, fans=(("left", 3),), maker=None,
    made=None, place=9,
)  # fmt: skip
WRITTEN = {
    "schema": "memsheet/card/1", "memory_bytes": 2, "memory_low_bytes": 1, "memory_high_bytes": 3, "low_bytes": 1,
    "driver": None, "held": {"backward": 4}, "fans": [{"name": "left", "speed": 3.0}], "made": None, "place": 7,
}  # fmt: skip


def test_every_way_to_read_a_key() -> None:
    assert list(Card.document_of(VALUE, place=7).items()) == list(WRITTEN.items())
    assert "fans" not in Card.document_of(SimpleNamespace(**{**vars(VALUE), "fans": ()}))


def test_what_a_plain_tuple_lacks_is_left_out() -> None:
    assert Fan.document_of(("left",)) == {"name": "left"}


@pytest.mark.parametrize(
    "wrong", [{"more": 1}, {"memory_low_bytes": -1}, {"fans": [{}]}, {"schema": "other"}]
)
def test_the_model_takes_what_is_written_and_nothing_else(wrong: dict[str, Any]) -> None:
    model = document_model(Card)
    model.model_validate(WRITTEN, strict=False)
    with pytest.raises(ValueError, match="validation error"):
        model.model_validate({**WRITTEN, **wrong}, strict=False)


def test_a_description_does_not_depend_on_the_width_of_the_source() -> None:
    assert document_model(Fan).__doc__ == "A fan that turns at a speed."
