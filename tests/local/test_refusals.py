"""Objects that the real API server refuses, and its words: ours says the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from koordinator.api import kinds
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.local import registry

CASES = yaml.safe_load((Path(__file__).parent / "schema" / "refusals.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
async def test_a_refusal_says_what_kube_apiserver_says(case: dict[str, Any]) -> None:
    obj = case["object"]
    group, _, version = obj["apiVersion"].rpartition("/")
    resource = kinds.by_kind(group, obj["kind"], version)
    assert resource is not None
    api = registry.in_memory(FixedClock())
    answer = ""

    try:
        await api.create(resource, "default" if resource.namespaced else "", obj)
    except errors.ApiError as error:
        answer = error.message

    assert answer == case["message"]
