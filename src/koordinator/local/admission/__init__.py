"""Admission: what is built in, and webhooks, really called.

`WebhookAdmission.on(registry, rng)` is the `Admission` of `local.interfaces`; set it as the registry's, and
`close` it at the end. Without any configuration `wants` costs two look-ups.

* `clientConfig.url` must be `https://...`, or `inproc://NAME` for a function registered with
  `register_handler(NAME, handler)`: the same AdmissionReview bytes, no socket, so it works on virtual time.
* `clientConfig.service` is reached where `register_service` says, else at its endpoints.
* `matchConditions` (CEL) know `object`, `oldObject` and `request`; one that asks for `authorizer` is refused when the
  configuration is written.
"""

from koordinator.local.admission.client import Handler, ServiceResolver, UnresolvedService
from koordinator.local.admission.webhooks import AdmissionChain, BackendSource, WebhookAdmission

__all__ = [
    "AdmissionChain",
    "BackendSource",
    "Handler",
    "ServiceResolver",
    "UnresolvedService",
    "WebhookAdmission",
]
