"""Defaults of pods and pod templates, copied on write: an object that lacks nothing is returned as it is.

Source: the field documentation of PodSpec and Container.
"""

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Default = Callable[[Json], Json]


def fill(value: Json, **defaults: Any) -> Json:
    """`value` with the members that it lacks."""
    missing = {key: default for key, default in defaults.items() if key not in value}
    return {**value, **missing} if missing else value


def change(value: Json, key: str, default: Default) -> Json:
    """`value` with an object member run through `default`; a missing member stays missing."""
    old = value.get(key)
    if not isinstance(old, dict):
        return value
    new = default(old)
    return value if new is old else {**value, key: new}


def change_each(value: Json, key: str, default: Default) -> Json:
    """`value` with every element of a list member run through `default`."""
    old = value.get(key)
    if not old:
        return value
    new = [default(item) for item in old]
    return value if all(a is b for a, b in zip(new, old, strict=True)) else {**value, key: new}


def filling(**defaults: Any) -> Default:
    """Return a default that gives objects the members that they lack."""
    return lambda value: fill(value, **defaults)


def at(path: str, default: Default) -> Default:
    """Return a default of whatever the members and elements of a path, such as `spec.ports[]`, are; what is missing
    stays missing."""
    head, _, rest = path.partition(".")
    inner = at(rest, default) if rest else default
    name = head.removesuffix("[]")
    step = change if name == head else change_each
    return lambda value: step(value, name, inner)


DEFAULT_MODE = 0o644
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_MODE_VOLUMES = ("secret", "configMap", "downwardAPI", "projected")


def pod(obj: Json) -> Json:
    """Return a Pod with defaults. The registry sets what needs other objects or the moment (priority, tolerations, QoS
    class)."""
    return change(obj, "spec", pod_spec)


def template(value: Json) -> Json:
    """Return a pod template with defaults, which only its spec has."""
    return change(value, "spec", spec)


def pod_spec(value: Json) -> Json:
    """Return the spec of a pod with defaults: also those that templates do without."""
    host_network = bool(value.get("hostNetwork"))
    if (value.get("terminationGracePeriodSeconds") or 0) < 0:  # in templates it stays, with a warning
        value = {**value, "terminationGracePeriodSeconds": 1}

    def container(item: Json) -> Json:
        item = change(_container(item), "resources", _requests_from_limits)
        return change_each(item, "ports", _host_port) if host_network else item

    return fill(spec(value, container), enableServiceLinks=True)


def spec(value: Json, container: Default | None = None) -> Json:
    """Return a PodSpec with the defaults that it has in templates, too; `container` is that of its containers."""
    container = container or _container
    value = fill(
        value,
        restartPolicy="Always",
        dnsPolicy="ClusterFirst",
        terminationGracePeriodSeconds=30,
        schedulerName="default-scheduler",
        securityContext={},
    )
    account = value.get("serviceAccountName") or value.get("serviceAccount")
    if account:
        value = fill(value, serviceAccountName=account, serviceAccount=account)
    value = change_each(value, "containers", container)
    value = change_each(value, "initContainers", container)
    value = change_each(value, "ephemeralContainers", _container)
    return change_each(value, "volumes", _volume)


def _container(value: Json) -> Json:
    value = fill(
        value,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy=pull_policy(value.get("image", "")),
    )
    value = change_each(value, "ports", lambda port: fill(port, protocol="TCP"))
    value = change_each(value, "env", _env)
    for name in _PROBES:
        value = change(value, name, _probe)
    return change(value, "lifecycle", _lifecycle)


def pull_policy(image: str) -> str:
    """`Always` for an image without tag or tagged `latest`, else `IfNotPresent`."""
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "IfNotPresent" if colon and tag != "latest" else "Always"


def _requests_from_limits(value: Json) -> Json:
    limits = value.get("limits")
    if not limits:
        return value
    requests = value.get("requests") or {}
    missing = {name: amount for name, amount in limits.items() if name not in requests}
    return {**value, "requests": {**requests, **missing}} if missing else value


def _host_port(port: Json) -> Json:
    return fill(port, hostPort=port["containerPort"]) if port.get("containerPort") else port


_OF_V1 = filling(apiVersion="v1")
_env = at("valueFrom.fieldRef", _OF_V1)


def _probe(value: Json) -> Json:
    value = fill(value, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    return change(change(value, "grpc", _grpc), "httpGet", _http_get)


_grpc, _http_get = filling(service=""), filling(path="/", scheme="HTTP")
_post_start, _pre_stop = at("postStart.httpGet", _http_get), at("preStop.httpGet", _http_get)


def _lifecycle(value: Json) -> Json:
    return _pre_stop(_post_start(value))


def _volume(value: Json) -> Json:
    if len(value) == 1 and "name" in value:
        return {**value, "emptyDir": {}}
    for kind in _MODE_VOLUMES:
        value = change(value, kind, _with_mode)
    value = change(value, "downwardAPI", _downward_api)
    value = change(value, "hostPath", _of_any_type)
    return _projections(value)


_with_mode, _of_any_type = filling(defaultMode=DEFAULT_MODE), filling(type="")
_downward_api = at("items[].fieldRef", _OF_V1)  # fields of the pod in files


def _projection(value: Json) -> Json:
    value = change(value, "downwardAPI", _downward_api)
    return change(value, "serviceAccountToken", _token)


_token = filling(expirationSeconds=3600)
_projections = at("projected.sources[]", _projection)
