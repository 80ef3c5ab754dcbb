"""A pod as the scheduler counts it."""

from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.table.pod_info import PodInfo

MI = 1 << 20


@pytest.mark.parametrize(
    ("whole", "overhead", "counts_for"),
    [
        pytest.param(None, {}, (100 + 100, 200 * MI * 2), id="containers without requests"),
        pytest.param(None, {"memory": "10Mi"}, (200, 410 * MI), id="overhead stands in for no container"),
        pytest.param({"cpu": "1"}, {}, (1000, 200 * MI * 2), id="cpu of the whole pod"),
        pytest.param({"cpu": "1"}, {"memory": "10Mi"}, (1000, 10 * MI), id="and overhead that names memory"),
        pytest.param({"cpu": "1", "memory": "1Mi"}, {}, (1000, MI), id="all of the whole pod"),
        pytest.param({"hugepages-2Mi": "2Mi"}, {}, (200, 400 * MI), id="nothing that counts in scores"),
    ],
)
def test_scores_count_defaults_only_for_what_nobody_names(
    whole: Any, overhead: dict[str, str], counts_for: tuple[int, int]
) -> None:
    spec: dict[str, Any] = {"containers": [{"name": "a"}, {"name": "b"}], "overhead": overhead}
    if whole is not None:
        spec["resources"] = {"requests": whole}
    pod = from_builtins({"metadata": {"name": "p"}, "spec": spec}, Pod)
    assert PodInfo.of(pod, ResourceRegistry()).nonzero_amounts == counts_for
