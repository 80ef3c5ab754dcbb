"""Quotas with kubectl on a running `koordinator up` with room for ten pods of one core: lent, taken back, moved."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, scheduler_config, started, until, with_kubectl
from tests.e2e.test_quota_stories import Q, listed, quota

pytestmark = with_kubectl(timeout_s=120)

GANG = "gang.scheduling.koordinator.sh"
NAMESPACE = ("-n", "quotas")
TEAM = {"cpu": "10"}
Json = dict[str, Any]


def leaf(name: str, least: str, parent: str, most: str = "10") -> Json:
    return quota(name, parent, low={"cpu": least}, high={"cpu": most})


TREE = listed(
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "quotas"}},
    quota("team", is_parent=True, low=TEAM, high=TEAM),
    leaf("search", "6", "team"),
    leaf("ads", "4", "team"),
    quota("guests", is_parent=True, low={"cpu": "0"}, high=TEAM),
)


def pods(of: str, count: int, *, firm: bool = False, gang: str = "", minimum: int = 0) -> list[Json]:
    """Pods of a quota. `firm`: nobody may preempt them; `gang`: they are one, with that minimum."""
    labels = {f"{Q}/name": of, "of": of} | ({f"{Q}/preemptible": "false"} if firm else {})
    annotations = {f"{GANG}/name": gang, f"{GANG}/min-available": str(minimum)} if gang else {}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{gang or of}-{number}",
                "namespace": "quotas",
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [
                    {"name": "main", "image": "web", "resources": {"requests": {"cpu": "1"}}},
                ],
            },
        }
        for number in range(count)
    ]


class Quotas:
    """What is seen of quotas and their pods."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def create(self, *objects: Json) -> None:
        self.cluster.kubectl("create", "-f", "-", text=listed(*objects))

    def patch(self, name: str, **spec: Json) -> None:
        body = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "elasticquota", name, *NAMESPACE, "--type=merge", "-p", body)

    def running(self, of: str) -> int:
        """Pods of a quota that have a node."""
        found = self.cluster.get("pods", *NAMESPACE, "-l", f"of={of}")["items"]
        return sum(bool(each["spec"].get("nodeName")) for each in found)

    def cores(self, name: str) -> dict[str, str]:
        """What the scheduler has written on the quota about cpu: "0" where it says nothing."""
        found = self.cluster.get("elasticquota", name, *NAMESPACE)
        notes = found["metadata"]["annotations"]
        told = {
            key: json.loads(notes.get(f"{Q}/{key}", "{}")).get("cpu", "0")
            for key in ("runtime", "request", "child-request", "non-preemptible-used")
        }
        return told | {"used": found.get("status", {}).get("used", {}).get("cpu", "0")}

    def wait(self, what: Any, wanted: Any) -> None:
        """Until `what` answers as wanted; a failure shows the last answer."""
        last = None

        def holds() -> bool:
            nonlocal last
            last = what()
            return bool(last == wanted)

        try:
            until(holds, 20, self.cluster.process)
        except AssertionError as error:
            raise AssertionError(f"{last} instead of {wanted}") from error

    def used(self, *names: str) -> list[str]:
        return [self.cores(name)["used"] for name in names]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("quotas")
    config = scheduler_config(folder, monitorAllQuotas="true", delayEvictTime="1s")
    arguments = ("--nodes", "2", "--node-cpu", "6", "--scheduler-config", str(config))
    running = started(folder, *arguments)
    running.kubectl("apply", "-f", "-", text=TREE)
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def quotas(cluster: Cluster) -> Iterator[Quotas]:
    found = Quotas(cluster)
    yield found
    cluster.kubectl("delete", "pods", "--all", *NAMESPACE, "--now", "--wait=false")
    found.wait(lambda: len(cluster.get("pods", *NAMESPACE)["items"]), 0)


def test_what_is_lent_comes_back_when_its_owner_asks(quotas: Quotas) -> None:
    quotas.create(*pods("search", 10))
    quotas.wait(lambda: quotas.running("search"), 10)
    quotas.wait(lambda: quotas.cores("search")["runtime"], "10")

    quotas.create(*pods("ads", 4))

    quotas.wait(lambda: quotas.cores("search")["runtime"], "6")
    quotas.wait(lambda: quotas.running("ads"), 4)
    quotas.wait(lambda: quotas.used("search", "ads", "team"), ["6", "4", "10"])
    assert quotas.running("search") == 6, "and no more than the four that were lent are taken back"


def test_firm_pods_never_run_above_min(quotas: Quotas) -> None:
    quotas.create(*pods("ads", 6, firm=True))

    quotas.wait(lambda: quotas.running("ads"), 4)
    quotas.wait(lambda: quotas.cores("ads")["non-preemptible-used"], "4")
    waiting = quotas.cluster.kubectl("describe", "pods", *NAMESPACE, "-l", "of=ads")
    assert "Insufficient non-preemptible quotas, quotaName: ads, min: cpu:4" in waiting

    quotas.patch("search", min={"cpu": "5"})
    quotas.patch("ads", min={"cpu": "5"})
    quotas.wait(lambda: quotas.running("ads"), 5)
    quotas.patch("ads", min={"cpu": "4"})
    quotas.patch("search", min={"cpu": "6"})


def test_a_quota_that_moves_takes_its_accounts_along(quotas: Quotas) -> None:
    quotas.create(*pods("search", 3), *pods("ads", 2))
    quotas.wait(lambda: quotas.used("search", "ads", "team", "guests"), ["3", "2", "5", "0"])

    quotas.patch("ads", min={"cpu": "0"})
    move = ("label", "elasticquota", "ads", *NAMESPACE, "--overwrite")
    quotas.cluster.kubectl(*move, f"{Q}/parent=guests")

    quotas.wait(lambda: quotas.used("search", "ads", "team", "guests"), ["3", "2", "3", "2"])
    quotas.wait(lambda: [quotas.cores(name)["child-request"] for name in ("team", "guests")], ["3", "2"])

    quotas.cluster.kubectl("label", "pod", "ads-0", *NAMESPACE, "--overwrite", f"{Q}/name=search")
    quotas.wait(lambda: quotas.used("search", "ads", "team", "guests"), ["4", "1", "4", "1"])
    quotas.cluster.kubectl("delete", "pods", *NAMESPACE, "--all", "--now")
    quotas.wait(lambda: quotas.used("search", "ads", "team", "guests"), ["0", "0", "0", "0"])
    quotas.cluster.kubectl(*move, f"{Q}/parent=team")
    quotas.patch("ads", min={"cpu": "4"})


def test_a_gang_waits_as_a_whole_for_room_in_its_quota(quotas: Quotas) -> None:
    quotas.patch("ads", max={"cpu": "4"})
    quotas.create(*pods("ads", 5, gang="job", minimum=5))
    quotas.create(*pods("search", 1))
    quotas.wait(lambda: quotas.running("search"), 1)
    assert quotas.running("ads") == 0

    def told() -> bool:
        return "quotaName: ads" in quotas.cluster.kubectl("describe", "pods", *NAMESPACE, "-l", "of=ads")

    quotas.wait(told, True)
    assert quotas.used("ads") == ["0"], "places of a gang that does not fit are given back"

    quotas.patch("ads", max={"cpu": "10"})
    quotas.wait(lambda: quotas.running("ads"), 5)
