"""The MutatingWebhookConfiguration that makes an API server ask us (spec 01 §14.3)."""

import base64
from typing import Any

from koordinator.manager.webhooks import pod_mutating

NAME = "koordinator-mutating-webhook-configuration"
_OUTSIDE_CONTROL_PLANE = {"matchExpressions": [{"key": "control-plane", "operator": "DoesNotExist"}]}


def mutating(url: str, ca_cert: bytes | None, *, failure_policy: str = "Fail") -> dict[str, Any]:
    """The configuration for a webhook server at `url` (`https://host:port`).

    `ca_cert` is PEM; None for a server inside the API server's own process.
    """
    client: dict[str, Any] = {"url": f"{url}{pod_mutating.PATH}"}
    if ca_cert is not None:
        client["caBundle"] = base64.b64encode(ca_cert).decode()
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": "mpod-create.koordinator.sh",
                "clientConfig": client,
                "rules": [
                    {
                        "operations": ["CREATE"],
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["pods"],
                        "scope": "Namespaced",
                    }
                ],
                "failurePolicy": failure_policy,
                "matchPolicy": "Equivalent",
                "namespaceSelector": _OUTSIDE_CONTROL_PLANE,
                "objectSelector": {},
                "sideEffects": "None",
                "timeoutSeconds": 10,
                "admissionReviewVersions": ["v1", "v1beta1"],
                "reinvocationPolicy": "Never",
            }
        ],
    }
