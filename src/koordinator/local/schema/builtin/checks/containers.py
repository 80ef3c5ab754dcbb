"""Checks of single containers: what they may do, what happens when they start and end, ephemeral ones.

Source: ValidateSecurityContext, validateLifecycle and validateEphemeralContainers in pkg/apis/core/validation of
kubernetes/kubernetes.
"""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors

Json = dict[str, Any]

_SECCOMP_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")
_PROC_MOUNTS = ("Default", "Unmasked")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_NOT_EPHEMERAL = (
    "ports",
    "resources",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
)


def check_security(context: Json | None, field: str) -> list[StatusCause]:
    """The securityContext of a container."""
    if not context:
        return []
    causes: list[StatusCause] = []
    mount = context.get("procMount")
    if mount is not None and mount not in _PROC_MOUNTS:
        causes.append(errors.not_supported(f"{field}.procMount", mount, _PROC_MOUNTS))
    causes += _check_seccomp(context.get("seccompProfile"), f"{field}.seccompProfile")
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            causes.append(errors.invalid(field, _shown(context), why))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            causes.append(errors.invalid(field, _shown(context), why))
    return causes


_CONTEXT_FIELDS = (
    "capabilities",
    "privileged",
    "seLinuxOptions",
    "windowsOptions",
    "runAsUser",
    "runAsGroup",
    "runAsNonRoot",
    "readOnlyRootFilesystem",
    "allowPrivilegeEscalation",
    "procMount",
    "seccompProfile",
    "appArmorProfile",
)
_INNER_FIELDS = {"capabilities": ("add", "drop"), "seccompProfile": ("type", "localhostProfile")}


def _shown(context: Json) -> Json:
    """A context as the API server quotes it: its own struct, with all fields."""
    return {_go_name(name): _shown_part(name, context.get(name)) for name in _CONTEXT_FIELDS}


def _shown_part(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {_go_name(part): value.get(part) for part in _INNER_FIELDS.get(name, tuple(value))}


def _go_name(name: str) -> str:
    return "SELinuxOptions" if name == "seLinuxOptions" else name[:1].upper() + name[1:]


def _check_seccomp(profile: Json | None, field: str) -> list[StatusCause]:
    if profile is None:
        return []
    kind, path = profile.get("type") or "", profile.get("localhostProfile")
    if kind == "Localhost":
        if path is None:
            why = "must be set when seccomp type is Localhost"
            return [errors.required(f"{field}.localhostProfile", why)]
        return []
    causes: list[StatusCause] = []
    if path is not None:
        why = "can only be set when seccomp type is Localhost"
        causes.append(
            errors.invalid(f"{field}.localhostProfile", _shown_part("seccompProfile", profile), why)
        )
    if kind and kind not in _SECCOMP_TYPES:
        causes.append(errors.not_supported(f"{field}.type", kind, _SECCOMP_TYPES))
    return causes


def check_lifecycles(spec: Json, field: str) -> list[StatusCause]:
    """Check what containers of a pod run after they start and before they end."""
    causes: list[StatusCause] = []
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            lifecycle = container.get("lifecycle")
            where = f"{field}.{group}[{index}].lifecycle"
            if lifecycle is None:
                continue
            if group == "initContainers" and container.get("restartPolicy") != "Always":
                why = "may not be set for init containers without restartPolicy=Always"
                causes.append(errors.forbidden(where, why))
            for hook in ("postStart", "preStop"):
                if lifecycle.get(hook) is not None:
                    causes += _check_hook(lifecycle[hook], f"{where}.{hook}")
    return causes


def _check_hook(handler: Json, field: str) -> list[StatusCause]:
    given = [name for name in _HANDLERS if handler.get(name) is not None]
    if not given:
        return [errors.required(field, "must specify a handler type")]
    why = "may not specify more than 1 handler type"
    return [errors.forbidden(f"{field}.{name}", why) for name in given[1:]]


def check_ephemeral(container: Json, field: str, others: set[Any]) -> list[StatusCause]:
    """Check that an ephemeral container has nothing that it may not have; `others` are the names of the pod's own
    containers.
    """
    causes: list[StatusCause] = []
    target = container.get("targetContainerName") or ""
    if target and target not in others:
        causes.append(errors.not_found(f"{field}.targetContainerName", target))
    why = "cannot be set for an Ephemeral Container"
    causes += [errors.forbidden(f"{field}.{name}", why) for name in _NOT_EPHEMERAL if container.get(name)]
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        causes += [
            errors.forbidden(f"{field}.volumeMounts[{index}].{name}", why)
            for name in ("subPath", "subPathExpr")
            if mount.get(name)
        ]
    return causes


__all__ = ["check_ephemeral", "check_lifecycles", "check_security"]
