"""What the documentation shows and what is shipped passes our own rules."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordinator.manager.config import colocation_config, node_slo_spec
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.config.validation import validate_config_map

ROOT = Path(__file__).parents[3]


def documented() -> list[Any]:
    text = (ROOT / "docs/node-policies.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    found = [yaml.safe_load(block if block.startswith("data:") else f"data:\n{block}") for block in blocks]
    return [pytest.param(each["data"], id=f"docs {next(iter(each['data']))}") for each in found]


def shipped() -> list[Any]:
    files = [ROOT / "deploy/base/configmap.yaml", *sorted((ROOT / "deploy/profiles").glob("*.config.yaml"))]
    return [
        pytest.param(each["data"], id=file.name)
        for file in files
        for each in yaml.safe_load_all(file.read_text())
        if each and each.get("data")
    ]


@pytest.mark.parametrize("data", [*documented(), *shipped()])
def test_it_is_accepted_and_understood(data: dict[str, str]) -> None:
    assert validate_config_map({}, data, {}, names_needed=True).message == ""
    assert node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data).problems == {}
    outcome = colocation_config.sync(ColocationState(), data)
    assert (outcome.problem, outcome.entry_problems) == ("", ())
