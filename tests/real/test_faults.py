"""Leaders that go, an API server that is killed, refuses or falls silent: pods are bound all the same, each once."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import until
from tests.real.cluster import RealCluster, Shape
from tests.real.silent_proxy import SilentProxy

Json = dict[str, Any]

HAND_OVER_S = 20.0
LEASE_S = 15.0
SILENCE_S = 180.0
"""A watch without any word for a minute or two is given up, bookmarks included..."""
BOOKMARKS_S = 75.0
"""... by whom has seen that the server sends them, which a real one does every minute."""


@pytest.fixture(scope="module")
def cluster(_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with RealCluster.open(tmp_path_factory.mktemp("faults"), Shape(nodes=5)) as running:
        yield running


def pods(prefix: str, count: int) -> str:
    items = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{prefix}-{number}", "labels": {"of": prefix}},
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [
                    {"name": "main", "image": "web", "resources": {"requests": {"cpu": "10m"}}},
                ],
            },
        }
        for number in range(count)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def bound(cluster: RealCluster, prefix: str) -> int:
    items = cluster.get("pods", "-l", f"of={prefix}")["items"]
    return sum(bool(each["spec"].get("nodeName")) for each in items)


def create(cluster: RealCluster, prefix: str, count: int) -> None:
    cluster.kubectl("create", "-f", "-", text=pods(prefix, count))


def holder(cluster: RealCluster, lease: str) -> str:
    found: str = cluster.get("lease", lease, "-n", "koordinator-system")["spec"].get("holderIdentity", "")
    return found


def test_the_second_scheduler_takes_over_at_once_when_the_first_is_told_to_go(cluster: RealCluster) -> None:
    first = cluster.scheduler
    assert first is not None
    until(first.leads, HAND_OVER_S, first.process)
    second = cluster.start_scheduler("second-scheduler")
    assert not second.leads()

    create(cluster, "handed", 30)
    assert first.stop(signal.SIGTERM) == 0
    stopped_s = time.monotonic()
    second.wait(second.leads, HAND_OVER_S, "leads")

    assert time.monotonic() - stopped_s < LEASE_S / 2, "the lease was given back, nobody waited for its end"
    create(cluster, "after", 5)
    until(lambda: (bound(cluster, "handed"), bound(cluster, "after")) == (30, 5), 60, second.process)
    cluster.scheduler = second


def test_the_second_manager_takes_over_when_the_first_is_killed(cluster: RealCluster) -> None:
    first = cluster.manager
    assert first is not None
    until(lambda: holder(cluster, "koordinator-manager"), HAND_OVER_S, first.process)
    second = cluster.start_manager("second-manager")
    leader = holder(cluster, "koordinator-manager")
    first.kill()

    second.wait(lambda: holder(cluster, "koordinator-manager") not in ("", leader), 3 * LEASE_S, "leads")

    cluster.kubectl("delete", "nodeslo", "node-0")
    until(lambda: cluster.run("get", "nodeslo", "node-0").returncode == 0, 60, second.process)
    cluster.manager = second


def test_pods_are_bound_after_the_api_server_was_killed(cluster: RealCluster) -> None:
    scheduler, manager = cluster.scheduler, cluster.manager
    assert scheduler is not None and manager is not None
    create(cluster, "before", 20)
    cluster.servers.apiserver.kill()
    time.sleep(3)
    cluster.servers.apiserver.start_again()
    cluster.servers.wait_ready()

    create(cluster, "anew", 5)

    def all_bound() -> bool:
        cluster.tend()  # a leader that could not renew its lease ends, and its Deployment starts another
        return (bound(cluster, "before"), bound(cluster, "anew")) == (20, 5)

    until(all_bound, 120, cluster.servers.apiserver.process)
    cluster.kubectl("delete", "nodeslo", "node-1")
    until(
        lambda: (cluster.tend(), cluster.run("get", "nodeslo", "node-1").returncode)[1] == 0,
        120,
        cluster.servers.apiserver.process,
    )
    assert "Traceback" not in scheduler.said() + manager.said()


NOTHING = {
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "kind": "PriorityLevelConfiguration",
    "metadata": {"name": "nothing"},
    "spec": {
        "type": "Limited",
        "limited": {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0}
        | {"limitResponse": {"type": "Reject"}},
    },
}
FLOW = {
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "kind": "FlowSchema",
    "metadata": {"name": "scheduler-writes"},
    "spec": {
        "priorityLevelConfiguration": {"name": "nothing"},
        "matchingPrecedence": 2,
        "rules": [
            {
                "subjects": [
                    {
                        "kind": "ServiceAccount",
                        "serviceAccount": {"name": "koord-scheduler", "namespace": "koordinator-system"},
                    }
                ],
                "resourceRules": [
                    {
                        "verbs": ["create"],
                        "apiGroups": [""],
                        "resources": ["pods/binding"],
                        "namespaces": ["*"],
                    }
                ],
            }
        ],
    },
}


@pytest.mark.timeout(400)
def test_all_pods_are_bound_although_the_api_server_answers_429_to_many_bindings(
    cluster: RealCluster,
) -> None:
    scheduler = cluster.scheduler
    assert scheduler is not None
    for each in (NOTHING, FLOW):
        cluster.kubectl("create", "-f", "-", text=json.dumps(each))
    rejected = 'apiserver_flowcontrol_rejected_requests_total{flow_schema="scheduler-writes"'
    scheduler.process.send_signal(signal.SIGSTOP)
    create(cluster, "many", 60)
    scheduler.process.send_signal(signal.SIGCONT)

    # Such a level lets one request through at a time, and rejects those that come meanwhile.
    until(lambda: rejected in cluster.kubectl("get", "--raw", "/metrics"), 60, scheduler.process)
    until(lambda: bound(cluster, "many") == 60, 240, scheduler.process)  # about a pod in a second

    cluster.kubectl("delete", "flowschema", "scheduler-writes")
    cluster.kubectl("delete", "prioritylevelconfiguration", "nothing")


@pytest.mark.timeout(600)
def test_a_pod_is_bound_although_a_proxy_keeps_connections_and_forwards_nothing(
    cluster: RealCluster, tmp_path: Path
) -> None:
    assert cluster.scheduler is not None
    cluster.scheduler.stop()
    proxy = SilentProxy(int(cluster.servers.url.rpartition(":")[2]))
    try:
        through = cluster.start_scheduler("behind-a-proxy", url=f"https://127.0.0.1:{proxy.port}")
        through.wait(through.leads, 3 * LEASE_S, "leads")
        create(cluster, "heard", 1)
        until(lambda: bound(cluster, "heard") == 1, 60, through.process)

        time.sleep(BOOKMARKS_S)
        assert proxy.hush() > 0
        create(cluster, "unheard", 1)

        until(lambda: bound(cluster, "unheard") == 1, SILENCE_S, through.process)
    finally:
        proxy.close()
