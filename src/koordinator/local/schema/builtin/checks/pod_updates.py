"""Check what an update of a pod may change (labels, images, a few numbers, more tolerations), and what its
subresources `ephemeralcontainers` and `resize` may.

Source: ValidatePodEphemeralContainersUpdate and ValidatePodResize of pkg/apis/core/validation in
kubernetes/kubernetes.
"""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.builtin.checks.common import tidy

Json = dict[str, Any]

_GROUPS = ("containers", "initContainers")
_RESIZED = ("resources", "resizePolicy")
_RESIZABLE = ("cpu", "memory")


def with_ephemeral_containers(pod: Json, old: Json) -> Json:
    """Return the pod as it is, with the ephemeral containers of another."""
    spec = {**old["spec"]}
    spec.pop("ephemeralContainers", None)
    sent = (pod.get("spec") or {}).get("ephemeralContainers")
    if sent:
        spec["ephemeralContainers"] = sent
    return spec


def check_ephemeral_containers(spec: Json, old_spec: Json) -> list[StatusCause]:
    """Ephemeral containers may be added; those that are there stay as they are."""
    field = "spec.ephemeralContainers"
    named = {each.get("name"): each for each in spec.get("ephemeralContainers") or ()}
    causes: list[StatusCause] = []
    for old in old_spec.get("ephemeralContainers") or ():
        name, new = old.get("name"), named.get(old.get("name"))
        if new is None:
            why = f"existing ephemeral containers {errors.shown(name)} may not be removed\n"
            causes.append(errors.forbidden(field, why))
        elif tidy(new) != tidy(old):
            shown = errors.shown(name)
            why = f"existing ephemeral containers {shown} may not be changed\nchanged: {_changed(new, old)}"
            causes.append(errors.forbidden(field, why))
    return causes


def _changed(new: Json, old: Json) -> str:
    return ", ".join(sorted(key for key in new.keys() | old.keys() if new.get(key) != old.get(key)))


def with_resources(pod: Json, old: Json) -> Json:
    """Return the pod as it is, with the resources and resize policies of another's containers.

    A spec whose containers are others comes back as it was sent, for `check_resize` to refuse.
    """
    sent, spec = pod.get("spec") or {}, old["spec"]
    for group in _GROUPS:
        if _names(sent, group) != _names(spec, group):
            return dict(sent)
    resized = {
        group: [
            _resized(new, was) for new, was in zip(sent.get(group) or (), spec.get(group) or (), strict=True)
        ]
        for group in _GROUPS
        if spec.get(group)
    }
    kept = {**spec, **resized}
    if sent.get("resources"):
        kept["resources"] = sent["resources"]
    return kept


def _resized(new: Json, was: Json) -> Json:
    kept = {name: value for name, value in was.items() if name not in _RESIZED}
    return kept | {name: value for name, value in new.items() if name in _RESIZED}


def check_resize(spec: Json, old: Json, qos_class: str) -> list[StatusCause]:
    """Check that a resize changes CPU and memory of containers and sidecars, never what the pod is. `qos_class` is
    that of the new spec."""
    was = old["spec"]
    causes: list[StatusCause] = []
    before = (old.get("status") or {}).get("qosClass", "")
    if before and before != qos_class:
        why = "Pod QOS Class may not change as a result of resizing"
        causes.append(errors.invalid("spec", before, why))
    if not _node_supports_resize(old):
        causes.append(errors.forbidden("spec", "Pod running on node without support for resize"))
    if spec.get("resources") or was.get("resources"):
        why = (
            "resize of pods with pod-level resources is forbidden when "
            "InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled"
        )
        return [*causes, errors.forbidden("", why)]
    others = [cause for group in _GROUPS for cause in _check_order(spec, was, group)]
    if others:
        return causes + others
    for group in _GROUPS:
        for index, (new, container) in enumerate(
            zip(spec.get(group) or (), was.get(group) or (), strict=True)
        ):
            is_plain_init = group == "initContainers" and container.get("restartPolicy") != "Always"
            field = f"spec.{group}[{index}].resources"
            causes += _check_container(new, container, group, field, is_fixed=is_plain_init)
    return causes


def _node_supports_resize(pod: Json) -> bool:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if (status.get("state") or {}).get("running") is not None:
            return status.get("resources") is not None
    return True


def _names(spec: Json, group: str) -> list[Any]:
    return [container.get("name") for container in spec.get(group) or ()]


def _check_order(spec: Json, was: Json, group: str) -> list[StatusCause]:
    new, old = _names(spec, group), _names(was, group)
    if len(new) != len(old):
        return [errors.forbidden(f"spec.{group}", f"{group} may not be added or removed on resize")]
    why = f"{group} may not be renamed or reordered on resize"
    return [
        errors.forbidden(f"spec.{group}[{index}].name", why)
        for index, (name, before) in enumerate(zip(new, old, strict=True))
        if name != before
    ]


def _check_container(new: Json, old: Json, group: str, field: str, *, is_fixed: bool) -> list[StatusCause]:
    wanted, present = new.get("resources") or {}, old.get("resources") or {}
    if is_fixed:
        if tidy(new) != tidy(old):
            why = "resources for non-sidecar init containers are immutable"
            return [errors.forbidden("spec", why)]
        return []
    causes = [
        errors.forbidden(f"{field}.{part}", f"resource {part} cannot be removed")
        for part in ("requests", "limits")
        if (present.get(part) or {}).keys() - (wanted.get(part) or {}).keys()
    ]
    if _fixed_amounts(wanted) != _fixed_amounts(present):
        whose = "for sidecar containers " if group == "initContainers" else ""
        causes.append(errors.forbidden("spec", f"only cpu and memory resources {whose}are mutable"))
    return causes


def _fixed_amounts(resources: Json) -> Any:
    """Return what a resize may not touch: claims, and amounts of other resources."""
    amounts = {
        part: {name: amount for name, amount in (resources.get(part) or {}).items() if name not in _RESIZABLE}
        for part in ("requests", "limits")
    }
    return tidy({**amounts, "claims": resources.get("claims")})


_ALLOWED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod(pod: Json, old: Json) -> list[StatusCause]:
    """Trouble with changing `old` to `pod`."""
    new_spec, old_spec = pod.get("spec") or {}, old.get("spec") or {}
    causes = _check_nomination(pod, old)
    if new_spec is old_spec:
        return causes
    causes += _check_deadline(new_spec, old_spec) + _check_tolerations(new_spec, old_spec)
    causes += _check_gates(new_spec, old_spec)
    for group in _GROUPS:
        if len(new_spec.get(group) or ()) != len(old_spec.get(group) or ()):
            return [
                *causes,
                errors.forbidden(f"spec.{group}", "pod updates may not add or remove containers"),
            ]
    before, after = tidy(_fixed_part(old_spec)), tidy(_fixed_part(new_spec))
    if old_spec.get("schedulingGates") and not old_spec.get(
        "nodeName"
    ):  # what a gate holds back may still be steered
        for name in ("nodeSelector", "affinity"):
            before.pop(name, None)
            after.pop(name, None)
    if before != after:
        causes.append(errors.forbidden("spec", f"{_ALLOWED}\nchanged: {_changed(after, before)}"))
    return causes


def _check_nomination(pod: Json, old: Json) -> list[StatusCause]:
    new, was = (((each.get("status") or {}).get("nominatedNodeName") or "") for each in (pod, old))
    if not new or new == was or not (old.get("spec") or {}).get("nodeName"):
        return []
    why = "may not be set on pods that are already bound to a node"
    return [errors.forbidden("status.nominatedNodeName", why)]


def _fixed_part(spec: Json) -> Json:
    """Return the spec without what has rules of its own; the binding sets nodeName; resizes and ephemeral containers
    have subresources."""
    mutable = {"activeDeadlineSeconds", "tolerations", "schedulingGates", "nodeName"}
    fixed = {key: value for key, value in spec.items() if key not in mutable}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [
                {key: value for key, value in container.items() if key != "image"}
                for container in fixed[group]
            ]
    if spec.get("nodeName"):
        fixed["nodeName"] = spec["nodeName"]
    if fixed.get("terminationGracePeriodSeconds") == 1:
        fixed.pop("terminationGracePeriodSeconds")
    return fixed


def _check_deadline(new: Json, old: Json) -> list[StatusCause]:
    field = "spec.activeDeadlineSeconds"
    before, after = old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if before == after or before is None:
        return []
    if after is None:
        return [errors.invalid(field, None, "must not update from a positive integer to nil value")]
    if after > before:
        return [errors.invalid(field, after, "must be less than or equal to previous value")]
    return []


def _check_tolerations(new: Json, old: Json) -> list[StatusCause]:
    def known(toleration: Json) -> Json:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    after = [known(item) for item in new.get("tolerations") or ()]
    for item in old.get("tolerations") or ():
        if known(item) not in after:
            detail = "existing toleration can not be modified except its tolerationSeconds"
            return [errors.forbidden("spec.tolerations", detail)]
    return []


def _check_gates(new: Json, old: Json) -> list[StatusCause]:
    before = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    added = "only deletion is allowed, but found new scheduling gate"
    return [
        errors.forbidden(f"spec.schedulingGates[{index}].name", f"{added} '{gate.get('name')}'")
        for index, gate in enumerate(new.get("schedulingGates") or ())
        if gate.get("name") not in before
    ]
