"""Checks of single containers: what they may do, what happens when they start and end, ephemeral ones; what they may
be told about their pod (fields and resources, in variables and files).

Source: ValidateSecurityContext, validateLifecycle, validateEphemeralContainers and validateObjectFieldSelector with
its neighbours in pkg/apis/core/validation of kubernetes/kubernetes.
"""

import re
from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names

Json = dict[str, Any]

_RESIZED = ("cpu", "memory")
_RESIZE_POLICIES = ("NotRequired", "RestartContainer")
_HOST_PATHS = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)


def check_resize_policy(policy: Json, field: str) -> list[StatusCause]:
    """Check a ContainerResizePolicy; what is wrong is said of the whole list."""
    where, causes = field.rpartition("[")[0], list[StatusCause]()
    for name, known in (("resourceName", _RESIZED), ("restartPolicy", _RESIZE_POLICIES)):
        value = policy.get(name) or ""
        if not value:
            causes.append(errors.required(where))
        elif value not in known:
            causes.append(errors.not_supported(where, value, known))
    return causes


def check_env_from(source: Json, field: str) -> list[StatusCause]:
    """Check an EnvFromSource."""
    given = [name for name in ("configMapRef", "secretRef") if source.get(name) is not None]
    where = field.rpartition("[")[0]
    if not given:
        return [errors.invalid(where, "", "must specify one of: `configMapRef` or `secretRef`")]
    causes = [errors.required(f"{field}.{name}.name") for name in given if not source[name].get("name")]
    if len(given) > 1:
        causes.append(errors.invalid(where, "", "may not have more than one field specified at a time"))
    return causes


_ID_MAX = (1 << 31) - 1


def check_groups(groups: list[int], field: str) -> list[StatusCause]:
    """Check the ids of groups."""
    why = f"must be between 0 and {_ID_MAX}, inclusive"
    return [
        errors.invalid(f"{field}[{index}]", group, why)
        for index, group in enumerate(groups)
        if not 0 <= group <= _ID_MAX
    ]


def check_exec(action: Json, field: str) -> list[StatusCause]:
    """Check an ExecAction."""
    return [] if action.get("command") else [errors.required(f"{field}.command")]


def check_secret_volume(source: Json, field: str) -> list[StatusCause]:
    """Check a SecretVolumeSource."""
    return [] if source.get("secretName") else [errors.required(f"{field}.secretName")]


def check_host_path(source: Json, field: str) -> list[StatusCause]:
    """Check a HostPathVolumeSource that has a path."""
    path, kind = source.get("path") or "", source.get("type") or ""
    causes: list[StatusCause] = []
    if ".." in path.split("/"):
        causes.append(errors.invalid(f"{field}.path", path, "must not contain '..'"))
    if path and kind not in _HOST_PATHS:
        causes.append(errors.not_supported(f"{field}.type", kind, _HOST_PATHS))
    return causes


_FILE_FIELDS = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
_ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_KNOWN_FIELDS = frozenset(
    (*_FILE_FIELDS, *_ENV_FIELDS, "spec.restartPolicy", "spec.schedulerName", "status.phase")
)
_RESOURCES = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)
_HUGE_PAGES = ("limits.hugepages-", "requests.hugepages-")
_SUBSCRIPT = re.compile(r"(.+)\['(.+)'\]")


def check_source(source: Json, field: str) -> list[StatusCause]:
    """Check where a variable gets its value."""
    causes: list[StatusCause] = []
    if source.get("fieldRef") is not None:
        causes += _check_field(source["fieldRef"], f"{field}.fieldRef", _ENV_FIELDS)
    if source.get("resourceFieldRef") is not None:
        causes += _check_resource(source["resourceFieldRef"], f"{field}.resourceFieldRef", is_file=False)
    return causes


def check_key(reference: Json, field: str) -> list[StatusCause]:
    """Check a reference to a key of a ConfigMap or Secret."""
    causes = [errors.required(f"{field}.name")] if not reference.get("name") else []
    return causes + names.check_given(names.config_key, reference.get("key"), f"{field}.key")


def check_files(source: Json, field: str) -> list[StatusCause]:
    """Check files of a volume that tell about the pod."""
    causes: list[StatusCause] = []
    for file in source.get("items") or ():  # the API server names no index here
        field_ref, amount = file.get("fieldRef"), file.get("resourceFieldRef")
        if field_ref is not None:
            causes += _check_field(field_ref, f"{field}.fieldRef", _FILE_FIELDS)
            if amount is not None:
                why = "fieldRef and resourceFieldRef can not be specified simultaneously"
                causes.append(errors.invalid(field, "resource", why))
        elif amount is not None:
            causes += _check_resource(amount, f"{field}.resourceFieldRef", is_file=True)
        else:
            causes.append(errors.required(field, "one of fieldRef and resourceFieldRef is required"))
    return causes


def _check_field(reference: Json, field: str, known: tuple[str, ...]) -> list[StatusCause]:
    version, path = reference.get("apiVersion") or "", reference.get("fieldPath") or ""
    where = f"{field}.fieldPath"
    if not version:
        return [errors.required(f"{field}.apiVersion")]
    if not path:
        return []  # what is required is checked elsewhere
    subscript = _SUBSCRIPT.fullmatch(path)
    trouble = _trouble(version, path, subscript)
    if trouble:
        return [errors.invalid(where, path, f"error converting fieldPath: {trouble}")]
    if subscript is not None:
        key = subscript[2].lower() if subscript[1] == "metadata.annotations" else subscript[2]
        return names.check(names.qualified_name, key, field)
    path = "spec.nodeName" if path == "spec.host" else path
    return [] if path in known else [errors.not_supported(where, path, known)]


def _trouble(version: str, path: str, subscript: "re.Match[str] | None") -> str:
    if version != "v1":
        return f"unsupported pod version: {version}"
    if subscript is not None:
        has_keys = subscript[1] in ("metadata.annotations", "metadata.labels")
        return "" if has_keys else f"field label does not support subscript: {path}"
    return "" if path in _KNOWN_FIELDS or path == "spec.host" else f"field label not supported: {path}"


def _check_resource(reference: Json, field: str, *, is_file: bool) -> list[StatusCause]:
    name = reference.get("resource") or ""
    if is_file and not reference.get("containerName"):
        return [errors.required(f"{field}.containerName")]
    if not name or name in _RESOURCES or name.startswith(_HUGE_PAGES):
        return []
    return [errors.not_supported(f"{field}.resource", name, _RESOURCES)]


_PROC_MOUNTS = ("Default", "Unmasked")
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


def check_security(context: Json, field: str) -> list[StatusCause]:
    """Check the securityContext of a container."""
    causes: list[StatusCause] = []
    mount = context.get("procMount")
    if mount is not None and mount not in _PROC_MOUNTS:
        causes.append(errors.not_supported(f"{field}.procMount", mount, _PROC_MOUNTS))
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
    """Return a context as the API server quotes it: its own struct, with all fields."""
    return {_go_name(name): _shown_part(name, context.get(name)) for name in _CONTEXT_FIELDS}


def _shown_part(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {_go_name(part): value.get(part) for part in _INNER_FIELDS.get(name, tuple(value))}


def _go_name(name: str) -> str:
    return "SELinuxOptions" if name == "seLinuxOptions" else name[:1].upper() + name[1:]


def check_seccomp(profile: Json, field: str) -> list[StatusCause]:
    """Check that a SeccompProfile has a file where, and only where, its type asks for one."""
    path, where = profile.get("localhostProfile"), f"{field}.localhostProfile"
    if profile.get("type") == "Localhost":
        return [errors.required(where, "must be set when seccomp type is Localhost")] if path is None else []
    if path is None:
        return []
    why = "can only be set when seccomp type is Localhost"
    return [errors.invalid(where, _shown_part("seccompProfile", profile), why)]


def check_headers(headers: list[Json], field: str) -> list[StatusCause]:
    """Check the headers of an HTTP probe; as upstream, they are told without their numbers."""
    return [
        cause for each in headers for cause in names.check(names.http_header, each.get("name") or "", field)
    ]


def check_ephemeral(container: Json, field: str, others: set[Any]) -> list[StatusCause]:
    """Check that an ephemeral container has nothing that it may not have; `others` are the names of the pod's own
    containers."""
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
