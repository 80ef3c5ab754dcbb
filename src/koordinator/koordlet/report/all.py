"""All parts that tell the cluster about this node, in the order in which they should have their first rounds."""

from koordinator.koordlet.interference.act import INTERFERENCE_CONTROL
from koordinator.koordlet.isolation.probe import IsolationProbe
from koordinator.koordlet.parts import Reporter, Shared
from koordinator.koordlet.predict.gpu_trainer import GPUTrainer
from koordinator.koordlet.predict.hour_trainer import HourTrainer
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.report import device_reporter, image_reporter, pod_resources
from koordinator.koordlet.report.device_reporter import DeviceReporter
from koordinator.koordlet.report.image_reporter import ImageReporter
from koordinator.koordlet.report.node_metric_reporter import ExtensionReporter, NodeMetricReporter
from koordinator.koordlet.report.pod_resources import PodResourcesProxy
from koordinator.koordlet.report.topology_reporter import TopologyReporter


def reporters(
    shared: Shared,
    mode: ShadowMode,
    trainer: Trainer,
    gpu_trainer: GPUTrainer | None = None,
    hour_trainer: HourTrainer | None = None,
) -> list[Reporter]:
    """Reporters that the configuration asks for. Trainers are run by the agent, like them."""
    found: list[Reporter] = []
    if shared.config.kubelet.topology_interval_s > 0:
        found.append(TopologyReporter(shared))
    if shared.config.kubelet.report_node_metric:
        found.append(NodeMetricReporter(shared, mode, trainer, gpu_trainer, hour_trainer))
        if shared.gates.is_on(INTERFERENCE_CONTROL):
            found.append(ExtensionReporter(shared))
    if shared.gates.is_on(device_reporter.GATE) or shared.gates.is_on(device_reporter.RDMA_GATE):
        found.append(DeviceReporter(shared))
    if shared.gates.is_on(pod_resources.GATE) and shared.config.kubelet.pod_resources_proxy:
        found.append(PodResourcesProxy(shared))
    found.append(ImageReporter(shared, is_on=shared.gates.is_on(image_reporter.GATE)))
    found.append(IsolationProbe(shared))
    return found
