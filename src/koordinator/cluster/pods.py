"""The bodies of the two pod subresources that components post to, and of deletions."""

from typing import Any


def binding(namespace: str, pod: str, node: str, uid: str = "") -> dict[str, Any]:
    """`v1/Binding` of a pod to a node; `uid` guards against a recreated pod of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace} | ({"uid": uid} if uid else {}),
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def eviction(namespace: str, pod: str, uid: str = "", grace_period_s: int | None = None) -> dict[str, Any]:
    """`policy/v1` Eviction of a pod; `uid` guards against a recreated pod of the same name."""
    options = delete_options(uid, grace_period_s)
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    return body | ({"deleteOptions": options} if options else {})


def delete_options(uid: str = "", grace_period_s: int | None = None) -> dict[str, Any]:
    """Return the members of `DeleteOptions` that are set."""
    options: dict[str, Any] = {}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    return options
