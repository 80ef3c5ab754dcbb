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


DEFAULT_MODE = 0o644
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_MODE_VOLUMES = ("secret", "configMap", "downwardAPI", "projected")


def pod(obj: Json) -> Json:
    """Return a Pod with defaults. The registry sets what needs other objects or the moment (priority, tolerations, QoS
    class)."""
    return change(obj, "spec", spec)


def template(value: Json) -> Json:
    """Return a pod template with defaults, which only its spec has."""
    return change(value, "spec", spec)


def spec(value: Json) -> Json:
    """Return a PodSpec with defaults."""
    value = fill(
        value,
        restartPolicy="Always",
        dnsPolicy="ClusterFirst",
        terminationGracePeriodSeconds=30,
        schedulerName="default-scheduler",
        securityContext={},
        enableServiceLinks=True,
    )
    account = value.get("serviceAccountName") or value.get("serviceAccount")
    if account:
        value = fill(value, serviceAccountName=account, serviceAccount=account)
    host_network = bool(value.get("hostNetwork"))

    def container(item: Json) -> Json:
        item = _container(item)
        return change_each(item, "ports", _host_port) if host_network else item

    for group in ("containers", "initContainers", "ephemeralContainers"):
        value = change_each(value, group, container)
    return change_each(value, "volumes", _volume)


def _container(value: Json) -> Json:
    value = fill(
        value,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy=pull_policy(value.get("image", "")),
    )
    value = change(value, "resources", _requests_from_limits)
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


def _env(value: Json) -> Json:
    def source(item: Json) -> Json:
        return change(item, "fieldRef", lambda ref: fill(ref, apiVersion="v1"))

    return change(value, "valueFrom", source)


def _probe(value: Json) -> Json:
    value = fill(value, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    value = change(value, "grpc", lambda grpc: fill(grpc, service=""))
    return change(value, "httpGet", _http_get)


def _http_get(value: Json) -> Json:
    return fill(value, path="/", scheme="HTTP")


def _lifecycle(value: Json) -> Json:
    for hook in ("postStart", "preStop"):
        value = change(value, hook, lambda handler: change(handler, "httpGet", _http_get))
    return value


def _volume(value: Json) -> Json:
    if len(value) == 1 and "name" in value:
        return {**value, "emptyDir": {}}
    for kind in _MODE_VOLUMES:
        value = change(value, kind, lambda source: fill(source, defaultMode=DEFAULT_MODE))
    value = change(value, "downwardAPI", _downward_api)
    value = change(value, "hostPath", lambda source: fill(source, type=""))
    return change(value, "projected", lambda source: change_each(source, "sources", _projection))


def _downward_api(value: Json) -> Json:
    """Fields of the pod in files."""
    return change_each(
        value, "items", lambda item: change(item, "fieldRef", lambda ref: fill(ref, apiVersion="v1"))
    )


def _projection(value: Json) -> Json:
    value = change(value, "downwardAPI", _downward_api)
    return change(value, "serviceAccountToken", lambda token: fill(token, expirationSeconds=3600))
