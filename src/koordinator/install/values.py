"""Define what can be chosen about an installation. The names are those of the Helm chart.

The descriptions here are the comments of the chart's `values.yaml` and of its schema, too (`chart`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from koordinator import __version__
from koordinator.api import defaults, upstream_gates, yaml_text
from koordinator.api.errors import SubjectError
from koordinator.api.feature_gates import Component, FeatureGateError, FeatureGates

Amount = str | int | float
"""A quantity such as 500m or 2Gi."""
Port = Annotated[int, Meta(ge=1, le=65535)]
Replicas = Annotated[int, Meta(ge=0, le=100)]
DNSName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
FailurePolicy = Literal["Fail", "Ignore"]


class ValuesError(SubjectError, ValueError):
    """Values of a file or flag that cannot be used."""


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of all sections."""


class InstallationValues(Section, frozen=True):
    """The place where the components live."""

    namespace: Annotated[DNSName, Meta(description="Namespace of all components.")] = defaults.NAMESPACE
    create_namespace: Annotated[
        bool,
        Meta(
            description="Make the namespace, with the label control-plane that keeps its own pods away from "
            "the pod webhooks. Whoever makes it by other means has to give it that label."
        ),
    ] = True


class Crds(Section, frozen=True, rename=None):
    """The CustomResourceDefinitions, each of which can be left out where another installation brings it."""

    managed: Annotated[bool, Meta(description="Bring CustomResourceDefinitions at all.")] = True
    clustercolocationprofiles: bool = True
    clusternetworktopologies: bool = True
    devices: bool = True
    elasticquotaprofiles: bool = True
    elasticquotas: bool = True
    nodemetrics: bool = True
    noderesourcetopologies: bool = True
    nodeslos: bool = True
    podgroups: bool = True
    podmigrationjobs: bool = True
    recommendations: bool = True
    reservations: bool = True
    scheduleexplanations: bool = True
    tidalpools: bool = True

    def brings(self, plural: str) -> bool:
        """Return whether the CRD with this plural is part of the installation."""
        return self.managed and bool(getattr(self, plural))


class Images(Section, frozen=True):
    """The source of images."""

    registry: Annotated[
        str, Meta(description="Put before every repository, such as registry.example.com/team; may be empty.")
    ] = ""
    tag: Annotated[str, Meta(description="Tag of all images that name no tag of their own.")] = __version__
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    pull_secrets: Annotated[list[str], Meta(description="Names of Secrets with registry credentials.")] = []


class Image(Section, frozen=True):
    """One component's image."""

    repository: str = "koordinator"
    tag: Annotated[str, Meta(description="Empty: that of `image`.")] = ""


class ResourcesValues(Section, frozen=True):
    """The resources that a container requests and may use."""

    requests: dict[str, Amount] = {}
    limits: dict[str, Amount] = {}


def _resources(cpu: str, memory: str, memory_limit: str) -> ResourcesValues:
    return ResourcesValues(requests={"cpu": cpu, "memory": memory}, limits={"memory": memory_limit})


class Log(Section, frozen=True):
    """The amount of logging."""

    level: Annotated[
        int, Meta(ge=0, le=10, description="0 warnings, 1 to 3 changes too, from 4 on decisions too.")
    ] = 1


class Placement(Section, frozen=True):
    """Settings that all components have; their flags come after ours."""

    enabled: bool = True
    image: Image = Image()
    extra_args: Annotated[
        list[str], Meta(description="Further command-line flags; the last of several wins.")
    ] = []
    node_selector: dict[str, str] = {}


class WebhookValues(Section, frozen=True):
    """The webhook server of koord-manager."""

    port: Annotated[Port, Meta(description="On which it listens; the Service has 443.")] = 9876


class PortSetting(Section, frozen=True):
    """A port of a component."""

    port: Port


class DisruptionBudgetValues(Section, frozen=True):
    """The part of a component that voluntary disruptions, such as draining nodes, leave."""

    enabled: bool = True
    max_unavailable: Annotated[int, Meta(ge=0)] = 1


class ManagerValues(Placement, frozen=True):
    """koord-manager: webhooks on every replica, controllers on the one that leads."""

    log: Log = Log()
    replicas: Replicas = 2
    host_network: Annotated[
        bool,
        Meta(
            description="Listen in the network of the node, where the API server cannot reach pods (some managed "
            "control planes with an overlay network)."
        ),
    ] = False
    webhook: WebhookValues = WebhookValues()
    metrics: PortSetting = PortSetting(port=8080)
    health_probe: PortSetting = PortSetting(port=8000)
    resources: ResourcesValues = _resources("500m", "256Mi", "1Gi")
    tolerations: list[dict[str, Any]] = []
    pod_disruption_budget: DisruptionBudgetValues = DisruptionBudgetValues()


class SchedulerValues(Placement, frozen=True):
    """koord-scheduler: one replica places pods, the other keeps its caches warm."""

    log: Log = Log()
    replicas: Replicas = 2
    port: Annotated[Port, Meta(description="Health, metrics and explanations, plain HTTP.")] = 10251
    secure_port: Annotated[Port, Meta(description="The same over TLS, for those who may.")] = 10259
    feature_gates: Annotated[str, Meta(description="As --feature-gates: A=true,B=false.")] = ""
    config: Annotated[
        str,
        Meta(
            description="A KubeSchedulerConfiguration that replaces the shipped profile; empty: the shipped one."
        ),
    ] = ""
    resources: ResourcesValues = _resources("500m", "512Mi", "2Gi")
    tolerations: list[dict[str, Any]] = []
    pod_disruption_budget: DisruptionBudgetValues = DisruptionBudgetValues()


class DeschedulerValues(Placement, frozen=True):
    """koord-descheduler: moves pods off nodes that are too hot, and carries out PodMigrationJobs."""

    enabled: Annotated[
        bool, Meta(description="Off unless asked for: it evicts pods as soon as its configuration says so.")
    ] = False
    log: Log = Log()
    replicas: Replicas = 1
    port: Annotated[Port, Meta(description="Health, metrics and explanations, plain HTTP.")] = 10251
    secure_port: Annotated[Port, Meta(description="The same over TLS, for those who may.")] = 10258
    feature_gates: Annotated[str, Meta(description="As --feature-gates: A=true,B=false.")] = ""
    config: Annotated[
        str,
        Meta(
            description="A DeschedulerConfiguration; empty: one that carries out PodMigrationJobs and evicts "
            "nothing by itself."
        ),
    ] = ""
    resources: ResourcesValues = _resources("500m", "256Mi", "1Gi")
    tolerations: list[dict[str, Any]] = []


class YarnOperatorValues(Placement, frozen=True):
    """koord-yarn-operator: shares the batch capacity of nodes with Hadoop YARN."""

    enabled: Annotated[
        bool, Meta(description="Off unless asked for: it needs the Hadoop files in `configMap`.")
    ] = False
    log: Log = Log()
    replicas: Replicas = 2
    metrics: PortSetting = PortSetting(port=8080)
    health_probe: PortSetting = PortSetting(port=8000)
    config_map: Annotated[
        DNSName,
        Meta(
            description="ConfigMap with yarn-site.xml and the like, CLUSTER.yarn-site.xml for more clusters; "
            "it is not made by the installation."
        ),
    ] = "yarn-config"
    user: Annotated[str, Meta(description="Who it is for YARN: must be in yarn.admin.acl.")] = "yarn"
    kerberos_principal: Annotated[str, Meta(description="NAME@REALM, for YARN clusters with Kerberos.")] = ""
    kerberos_secret: Annotated[
        str,
        Meta(description="Secret with `keytab` and `krb5.conf` for it; the image needs the package gssapi."),
    ] = ""
    yarn_share: Annotated[
        int,
        Meta(
            ge=1, le=100, description="The most of each node's batch pool that YARN is offered, in percent."
        ),
    ] = 100
    lend_once: Annotated[bool, Meta(description="Offer nothing to both: needs a yarnShare below 100.")] = (
        False
    )
    resources: ResourcesValues = _resources("100m", "128Mi", "512Mi")
    tolerations: list[dict[str, Any]] = []


class Koordlet(Placement, frozen=True):
    """koordlet: the agent on every Linux node."""

    log: Log = Log()
    image: Image = Image(repository="koordlet")
    port: Annotated[Port, Meta(description="Metrics, health and audit, on the node's own network.")] = 9316
    feature_gates: Annotated[str, Meta(description="As -feature-gates: A=true,B=false.")] = "AuditEvents=true"
    max_unavailable: Annotated[Amount, Meta(description="How many agents an upgrade may stop at once.")] = (
        "20%"
    )
    terway: Annotated[
        bool,
        Meta(
            description="Mount the directory by which Terway hears of network limits, for the gate TerwayQoS."
        ),
    ] = False
    resources: ResourcesValues = _resources("50m", "96Mi", "256Mi")


class DeviceDaemonValues(Placement, frozen=True):
    """koord-device-daemon: tells the agent of accelerators that only their vendors' tools know."""

    enabled: bool = False
    image: Image = Image(repository="koordlet")
    resources: ResourcesValues = _resources("5m", "32Mi", "256Mi")


class YarnCopilotValues(Placement, frozen=True):
    """koord-yarn-copilot: shows YARN's containers on a node to the agent, and ends those that must go."""

    enabled: bool = False
    log: Log = Log()
    image: Image = Image(repository="koordlet")
    port: Annotated[Port, Meta(description="Metrics and health, on the node's own network.")] = 9318
    resources: ResourcesValues = _resources("10m", "48Mi", "128Mi")


class FailurePolicies(Section, frozen=True):
    """The API server's behaviour when no manager answers."""

    pods: Annotated[
        FailurePolicy,
        Meta(description="Ignore: pods start unchanged, without their profile. Fail: no pod starts."),
    ] = "Ignore"
    elasticquotas: FailurePolicy = "Fail"
    reservations: FailurePolicy = "Fail"
    configmaps: Annotated[FailurePolicy, Meta(description="Of slo-controller-config only.")] = "Fail"
    nodes: FailurePolicy = "Ignore"
    node_status: FailurePolicy = "Ignore"
    pod_binding: FailurePolicy = "Ignore"
    tidalpools: FailurePolicy = "Ignore"


class WebhookConfiguration(Section, frozen=True):
    """The way that the API server calls the manager."""

    failure_policy: FailurePolicies = FailurePolicies()
    timeout_seconds: Annotated[int, Meta(ge=1, le=30)] = 30


class SloControllerConfig(Section, frozen=True):
    """The ConfigMap slo-controller-config."""

    create: bool = True
    data: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="Key of the ConfigMap -> its content; deploy/profiles has examples."),
    ] = msgspec.field(default_factory=lambda: defaults.SLO_CONFIG)


class PriorityClasses(Section, frozen=True):
    """koord-prod, koord-mid, koord-batch and koord-free."""

    create: bool = True


class ServiceMonitor(Section, frozen=True):
    """Scraping by the Prometheus operator; its CRDs have to be there."""

    enabled: bool = False
    interval: str = "30s"
    labels: Annotated[
        dict[str, str],
        Meta(description="Such as release: prometheus, which many Prometheus objects ask for."),
    ] = {}


class Dashboards(Section, frozen=True):
    """Grafana dashboards, one ConfigMap each."""

    enabled: bool = False
    labels: Annotated[dict[str, str], Meta(description="What Grafana's sidecar looks for.")] = msgspec.field(
        default_factory=lambda: {"grafana_dashboard": "1"}
    )


class MetricsValues(Section, frozen=True):
    """Collecting and showing metrics."""

    service_monitor: ServiceMonitor = ServiceMonitor()
    dashboards: Dashboards = Dashboards()


class Values(Section, frozen=True):
    """An installation."""

    installation: InstallationValues = InstallationValues()
    crds: Crds = Crds()
    feature_gates: Annotated[
        str, Meta(description="Of koord-manager, as --feature-gates: A=true,B=false.")
    ] = ""
    image: Images = Images()
    manager: ManagerValues = ManagerValues()
    scheduler: SchedulerValues = SchedulerValues()
    descheduler: DeschedulerValues = DeschedulerValues()
    yarn_operator: YarnOperatorValues = YarnOperatorValues()
    koordlet: Koordlet = Koordlet()
    device_daemon: DeviceDaemonValues = DeviceDaemonValues()
    yarn_copilot: YarnCopilotValues = YarnCopilotValues()
    webhook_configuration: WebhookConfiguration = WebhookConfiguration()
    slo_controller_config: SloControllerConfig = SloControllerConfig()
    priority_classes: PriorityClasses = PriorityClasses()
    metrics: MetricsValues = MetricsValues()


def read(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Values:
    """Defaults, with layers (source, mapping) put over them one after the other; later ones win.

    Mappings merge, everything else replaces; a null in a mapping with free keys takes the key out.

    Raises: ValuesError, which names the source and the path.
    """
    merged: dict[str, Any] = msgspec.to_builtins(Values())
    source = "values"
    values = Values()
    for source, layer in layers:
        merged = _merge(merged, layer)
        try:
            values = msgspec.convert(merged, Values)
        except msgspec.ValidationError as error:
            raise ValuesError(source, _path_first(str(error))) from error
        _check(source, values)
    _check_yarn(source, values.yarn_operator)
    return values


def _check_yarn(source: str, own: YarnOperatorValues) -> None:
    """Refuse settings that do not go together, once all of them are known. Raises: ValuesError."""
    if own.lend_once and own.yarn_share == 100:
        raise ValuesError(source, "yarnOperator.lendOnce: needs a yarnOperator.yarnShare below 100")
    if bool(own.kerberos_principal) != bool(own.kerberos_secret):
        raise ValuesError(source, "yarnOperator.kerberosSecret: goes together with kerberosPrincipal")


def _check(source: str, values: Values) -> None:
    """Refuse what a component would refuse when it starts. Raises: ValuesError."""
    from koordinator.koordlet import gates as koordlet_gates  # imports all hooks, which --help does not need

    path = "featureGates"
    try:
        FeatureGates.of(Component.MANAGER, values.feature_gates)
        path = "scheduler.featureGates"
        FeatureGates.of(Component.SCHEDULER, upstream_gates.split(values.scheduler.feature_gates)[0])
        path = "descheduler.featureGates"
        FeatureGates.of(Component.DESCHEDULER, values.descheduler.feature_gates)
        path = "koordlet.featureGates"
        koordlet_gates.of(values.koordlet.feature_gates)
    except FeatureGateError as error:
        raise ValuesError(source, f"{path}: {error}") from error


def read_file(source: str, text: str) -> dict[str, Any]:
    """Return the mapping in a YAML file of values. Raises: ValuesError."""
    try:
        found = yaml_text.load(text)
    except yaml_text.YamlError as error:
        raise ValuesError(source, f"this is no YAML: {error}") from error
    if not isinstance(found or {}, dict):
        raise ValuesError(source, f"expected a mapping, got {type(found).__name__}")
    return dict(found or {})


def read_setting(text: str) -> dict[str, Any]:
    """Return the mapping that `a.b=c` stands for; the value is read as YAML, `\\.` is a dot inside of a key.

    Raises: ValuesError.
    """
    path, equals, value = text.partition("=")
    keys = [key.replace("\0", ".") for key in path.strip().replace("\\.", "\0").split(".")]
    if not equals or not all(keys):
        raise ValuesError(f"--set {text}", "expected something like manager.replicas=3")
    try:
        found: Any = yaml_text.load(value)
    except yaml_text.YamlError as error:
        raise ValuesError(f"--set {text}", f"the value is no YAML: {error}") from error
    # `--set featureGates=` means an empty text, as for Helm; nothing here can be null.
    found = "" if value == "" else found
    for key in reversed(keys):
        found = {key: found}
    return dict(found)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(below, dict) and isinstance(value, Mapping):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged


def _path_first(message: str) -> str:
    """`image.tag: Expected …` for msgspec's `Expected … - at `$.image.tag``."""
    what, _, path = message.partition(" - at `")
    path = path.rstrip("`").removeprefix("$").removeprefix(".")
    return f"{path}: {what}" if path else what


EVERYTHING = Values(
    descheduler=DeschedulerValues(enabled=True),
    yarn_operator=YarnOperatorValues(enabled=True),
    device_daemon=DeviceDaemonValues(enabled=True),
    yarn_copilot=YarnCopilotValues(enabled=True),
    metrics=MetricsValues(service_monitor=ServiceMonitor(enabled=True), dashboards=Dashboards(enabled=True)),
)
"""All that an installation can have."""
