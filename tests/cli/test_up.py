"""Options of `koordinator up`, and how it begins."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from koordinator.cli import main as cli
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


def test_a_missing_package_is_told_and_nothing_is_tried_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = []

    def without_it(*_: object) -> None:
        begun.append(True)
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr("koordinator.local.cluster.LocalCluster", without_it)

    result = CliRunner().invoke(cli.main, ["up", "--kubeconfig", str(tmp_path / "kubeconfig")])

    assert result.exit_code == 1 and "pip install '.[node]'" in result.output
    assert begun == [True]
