"""Devices by claim, with kubectl: parts of a card, shares of one, taints by rule, access for administrators."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    device,
    device_class,
    exactly,
    of_size,
    partitioned,
    resource_slice,
    selector,
    share,
    shareable,
)

pytestmark = with_kubectl(timeout_s=180)

Json = dict[str, Any]
GATES = ",".join(
    f"{gate}=true"
    for gate in (
        "DRAPartitionableDevices",
        "DRAConsumableCapacity",
        "DRADeviceTaints",
        "DRADeviceTaintRules",
        "DRADeviceBindingConditions",
    )
)
GROUP = "resource.k8s.io"
SHARED = selector("device.allowMultipleAllocations")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node with a card in parts and one that is shared."""
    folder = tmp_path_factory.mktemp("claims")
    found = started(folder, "--nodes", "1", "--without-manager", "--scheduler-feature-gates", GATES)
    create(found, "DeviceClass", device_class())
    for body in partitioned("node-0"):
        create(found, "ResourceSlice", body)
    create(
        found, "ResourceSlice", resource_slice("shared", shareable("shared"), node="node-0", pool="shared")
    )
    yield found
    found.stop()


def create(cluster: Cluster, kind: str, body: Json, version: str = "v1") -> None:
    whole = {"apiVersion": f"{GROUP}/{version}", "kind": kind, **body}
    cluster.kubectl("create", "-f", "-", text=json.dumps(whole))


def ask(cluster: Cluster, name: str, *requests: Json) -> None:
    """A claim, and a pod that uses it."""
    create(cluster, "ResourceClaim", claim(name, *requests))
    container = {"name": "main", "image": "train", "resources": {"claims": [{"name": "c"}]}}
    spec = {
        "schedulerName": "koord-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("create", "-f", "-", text=json.dumps(body))


def results(cluster: Cluster, name: str) -> list[Json]:
    """What the claim got, once its pod runs."""
    until(lambda: cluster.get("pod", name)["status"].get("phase") == "Running", 60, cluster.process)
    found: list[Json] = cluster.get("resourceclaims", name)["status"]["allocation"]["devices"]["results"]
    return found


def waits(cluster: Cluster, name: str, why: str) -> None:
    def told() -> bool:
        conditions = cluster.get("pod", name)["status"].get("conditions", [])
        return any(why in each.get("message", "") for each in conditions)

    until(told, 60, cluster.process)


def end(cluster: Cluster, *names: str) -> None:
    cluster.kubectl("delete", "pods", *names, "--wait=true")
    cluster.kubectl("delete", "resourceclaims", *names, "--wait=true")


def test_a_card_goes_whole_or_in_parts_and_its_parts_come_back_together(cluster: Cluster) -> None:
    ask(cluster, "half", exactly(selectors=of_size(2)))
    ask(cluster, "quarters", exactly(selectors=of_size(1), count=2))
    assert len(results(cluster, "quarters")) == 2
    assert len(results(cluster, "half")) == 1

    ask(cluster, "whole", exactly(selectors=of_size(4)))
    waits(cluster, "whole", "1 cannot allocate all claims")
    end(cluster, "half", "quarters")

    assert [each["device"] for each in results(cluster, "whole")] == ["node-0-g0-4-0"]
    end(cluster, "whole")


def test_claims_share_a_card_and_each_says_what_it_takes(cluster: Cluster) -> None:
    for name, amount in (("a", "50Gi"), ("b", "30Gi")):
        ask(cluster, name, share(amount, selectors=SHARED))
    given = [*results(cluster, "a"), *results(cluster, "b")]
    assert [each["consumedCapacity"] for each in given] == [{"memory": "50Gi"}, {"memory": "30Gi"}]
    assert len({each["shareID"] for each in given}) == 2

    ask(cluster, "late", share("1Gi", selectors=SHARED))
    waits(cluster, "late", "1 cannot allocate all claims")
    end(cluster, "b")
    assert results(cluster, "late")[0]["device"] == "shared"
    end(cluster, "a", "late")


def test_a_rule_keeps_claims_from_a_device_until_it_is_deleted(cluster: Cluster) -> None:
    spec = {"deviceSelector": {"pool": "shared"}, "taint": {"key": "broken", "effect": "NoSchedule"}}
    create(cluster, "DeviceTaintRule", {"metadata": {"name": "broken"}, "spec": spec}, "v1alpha3")
    tolerant = share("1Gi", selectors=SHARED, tolerations=[{"key": "broken", "operator": "Exists"}])
    ask(cluster, "tolerant", tolerant)
    assert results(cluster, "tolerant")[0]["tolerations"][0]["key"] == "broken"
    ask(cluster, "plain", share("1Gi", selectors=SHARED))
    waits(cluster, "plain", "1 cannot allocate all claims")

    cluster.kubectl("delete", "devicetaintrules", "broken")
    assert results(cluster, "plain")[0]["device"] == "shared"
    end(cluster, "plain", "tolerant")


def test_administrators_look_at_a_device_in_use_where_the_namespace_may(cluster: Cluster) -> None:
    asks = exactly(selectors=of_size(4), adminAccess=True)
    body = {"apiVersion": f"{GROUP}/v1", "kind": "ResourceClaim", **claim("refused", asks)}
    refused = cluster.run("create", "-f", "-", text=json.dumps(body))
    assert (
        "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label"
        in refused.stderr
    )

    cluster.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
    ask(cluster, "user", exactly(selectors=of_size(4)))
    assert "adminAccess" not in results(cluster, "user")[0]
    ask(cluster, "admin", asks)
    [given] = results(cluster, "admin")
    assert (given["device"], given["adminAccess"]) == ("node-0-g0-4-0", True)
    end(cluster, "user", "admin")


def test_a_pod_waits_until_the_driver_has_attached_its_device(cluster: Cluster) -> None:
    conditions = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Refused"]}
    attached = {**device("far", size=9), **conditions, "bindsToNode": True}
    create(cluster, "ResourceSlice", resource_slice("fabric", attached))
    ask(cluster, "fabric", exactly(selectors=of_size(9)))
    until(
        lambda: cluster.get("resourceclaims", "fabric").get("status", {}).get("allocation"),
        60,
        cluster.process,
    )
    allocation = cluster.get("resourceclaims", "fabric")["status"]["allocation"]
    assert allocation["devices"]["results"][0]["bindingConditions"] == ["Attached"]
    assert allocation["allocationTimestamp"]
    events = "--field-selector=involvedObject.name=fabric,reason=BindingConditionsPending"
    until(lambda: cluster.get("events", events)["items"], 60, cluster.process)
    assert not cluster.get("pod", "fabric")["spec"].get("nodeName")

    ready = {
        "type": "Attached",
        "status": "True",
        "reason": "Done",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    said = {"driver": DRIVER, "pool": "fabric", "device": "far", "conditions": [ready]}
    patch = json.dumps({"status": {"devices": [said]}})
    cluster.kubectl("patch", "resourceclaims", "fabric", "--subresource=status", "--type=merge", "-p", patch)
    assert results(cluster, "fabric")[0]["device"] == "far"
    end(cluster, "fabric")
