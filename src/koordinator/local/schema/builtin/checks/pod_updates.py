"""Check what an update of a pod may change: labels, images, a few numbers, more tolerations."""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.builtin.checks.common import tidy

Json = dict[str, Any]

_ALLOWED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod(pod: Json, old: Json) -> list[StatusCause]:
    """Trouble with changing `old` to `pod`."""
    new_spec, old_spec = pod.get("spec") or {}, old.get("spec") or {}
    if new_spec is old_spec:
        return []
    causes = _check_deadline(new_spec, old_spec) + _check_tolerations(new_spec, old_spec)
    causes += _check_gates(new_spec, old_spec)
    if len(new_spec.get("containers") or ()) != len(old_spec.get("containers") or ()):
        return [*causes, errors.forbidden("spec.containers", "pod updates may not add or remove containers")]
    if len(new_spec.get("initContainers") or ()) != len(old_spec.get("initContainers") or ()):
        return [
            *causes,
            errors.forbidden("spec.initContainers", "pod updates may not add or remove containers"),
        ]
    before, after = tidy(_fixed_part(old_spec)), tidy(_fixed_part(new_spec))
    if _is_gated(old_spec):  # what a gate holds back may still be steered
        for name in ("nodeSelector", "affinity"):
            before.pop(name, None)
            after.pop(name, None)
    if before != after:
        changed = ", ".join(
            sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        )
        causes.append(errors.forbidden("spec", f"{_ALLOWED}\nchanged: {changed}"))
    return causes


def _is_gated(spec: Json) -> bool:
    return bool(spec.get("schedulingGates")) and not spec.get("nodeName")


def _fixed_part(spec: Json) -> Json:
    """The spec without what has rules of its own; the binding sets nodeName; resizes and ephemeral containers
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


__all__ = ["check_pod"]
