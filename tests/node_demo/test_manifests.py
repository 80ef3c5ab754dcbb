"""What the demonstration applies."""

import json
from importlib import resources

import msgspec
import pytest

from koordinator.api import defaults, interference, slo_config
from koordinator.api.annotations.koordlet import LATENCY_OBJECTIVE
from koordinator.api.core import Node, Pod
from koordinator.api.meta import ObjectMeta
from koordinator.api.qos import KubeQoS
from koordinator.local.processes import groups
from koordinator.manager.config import addons, colocation_config, node_slo_spec
from koordinator.node_demo import manifests, programs
from koordinator.node_demo.disk import LIMIT_BPS, WholeDisk
from koordinator.node_demo.plan import BATCH_PODS, SERVICE_REQUEST_MILLI, DemoMode

DISK = WholeDisk("/dev/vda", "254:0")


def configuration(disk: WholeDisk | None, mode: DemoMode = DemoMode.MANAGED) -> dict[str, str]:
    """What is in the ConfigMap once it has been applied."""
    return {key: text for key, text in manifests.configuration(disk, mode).items() if text is not None}


def pod(body: dict[str, object]) -> Pod:
    return msgspec.convert(body, Pod)


def test_the_configuration_is_one_that_the_manager_understands() -> None:
    data = configuration(DISK)

    assert node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data).problems == {}
    state = colocation_config.sync(colocation_config.ColocationState(), data).state
    assert state.available and not state.error


def test_best_effort_pods_yield_and_their_disk_is_limited() -> None:
    config = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, configuration(DISK)).config

    spec = node_slo_spec.wanted_spec(config, Node(metadata=ObjectMeta(name="n")))

    assert spec.resource_qos_strategy is not None
    best_effort = spec.resource_qos_strategy.be_class
    assert best_effort is not None and best_effort.cpu_qos is not None and best_effort.blkio_qos is not None
    assert best_effort.cpu_qos.group_identity == -1
    [block] = best_effort.blkio_qos.blocks
    assert (block.name, block.io_cfg.write_bps) == ("/dev/vda", LIMIT_BPS)


def test_without_a_disk_none_is_limited() -> None:
    qos = json.loads(configuration(None)[slo_config.RESOURCE_QOS.key])

    assert "blkioQOS" not in qos["clusterStrategy"]["beClass"]


def test_the_configuration_replaces_the_default_one() -> None:
    assert configuration(None).keys() >= defaults.slo_config()["data"].keys()


def test_by_default_services_are_protected_as_by_an_installation_that_nobody_has_configured() -> None:
    found, installed = (
        node_slo_spec.wanted_spec(
            node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data).config, Node(metadata=ObjectMeta(name="n"))
        )
        for data in (configuration(DISK, DemoMode.DEFAULT), defaults.slo_config()["data"])
    )

    assert found == installed


def test_the_service_is_a_burstable_pod_that_requests_its_cpu() -> None:
    service = pod(manifests.service(["/bin/service"]))

    assert groups.kube(service) is KubeQoS.BURSTABLE
    assert service.metadata.labels["koordinator.sh/qosClass"] == "LS"
    assert groups.cpu_request_milli(service) == SERVICE_REQUEST_MILLI


def test_unmanaged_batch_requests_together_what_the_service_does() -> None:
    pods = [pod(manifests.batch(DemoMode.UNMANAGED, n, ["hog"], 2, 64)) for n in range(BATCH_PODS)]

    assert all(groups.kube(each) is KubeQoS.BURSTABLE for each in pods)
    assert sum(map(groups.cpu_request_milli, pods)) == SERVICE_REQUEST_MILLI


def test_managed_batch_is_best_effort_and_may_use_the_whole_machine() -> None:
    batch = pod(manifests.batch(DemoMode.MANAGED, 0, ["hog"], 2, 64))

    assert groups.kube(batch) is KubeQoS.BEST_EFFORT
    assert batch.metadata.labels["koordinator.sh/qosClass"] == "BE"
    assert batch.spec.priority_class_name == "koord-batch"
    assert batch.spec.containers[0].resources.limits[manifests.BATCH_CPU] == "2000"


def test_the_service_says_where_it_tells_its_latency_and_what_it_promises() -> None:
    text = manifests.objective(1.8, 9100)

    found = LATENCY_OBJECTIVE.read({LATENCY_OBJECTIVE.key: text}, "pod service")

    assert found is not None and found.prometheus is not None
    assert (found.percentile, found.target_milliseconds, found.prometheus.port) == (99, 1.8, 9100)
    assert found.prometheus.metric in resources.files(programs).joinpath("histogram.h").read_text()


@pytest.mark.parametrize("mode", list(DemoMode))
def test_only_in_the_closed_loop_batch_follows_what_services_feel(mode: DemoMode) -> None:
    data = configuration(None, mode)

    policy = addons.INTERFERENCE.parse(data)

    spec = addons.INTERFERENCE.of_node(policy, Node(metadata=ObjectMeta(name="n"))) or {}
    assert interference.settings_of({addons.INTERFERENCE.name: spec}, "n").enable is (
        mode is DemoMode.CLOSED_LOOP
    )
