"""Options of `koordinator up`."""

import click
import pytest

from koordinator.cli.up_cards import read_gpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0, "")), ("8", (8, "")), ("4:H100", (4, "H100")), ("1:A10.1_x", (1, "A10.1_x"))],
)
def test_gpus_are_a_number_and_perhaps_a_model(text: str, expected: tuple[int, str]) -> None:
    assert read_gpus(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "65", "x", "8:", "8:NVIDIA A100", "8:a/b", "²"])
def test_other_gpus_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 8"):
        read_gpus(text)
