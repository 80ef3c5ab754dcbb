"""Refuse TidalPools that cannot be read: schedules, time zones, durations and marks (behaviour/tidal 3).

What a schema can say, the CRD says. The controller reads pools by the same function.
"""

import msgspec

from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.tidal_pool import TidalPool
from koordinator.manager.tidal.policy import policy_of
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, denied


class TidalPoolValidatingHandler:
    """Checks what is new of a pool; one that is being deleted must be able to go."""

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Return whether the pool can be read."""
        if request.resource.resource != "tidalpools" or request.sub_resource or request.object is None:
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        if request.old_object is not None and request.old_object.get("spec") == request.object.get("spec"):
            return ALLOWED
        try:
            policy_of(from_builtins(request.object, TidalPool))
        except msgspec.ValidationError as error:
            return denied(f"TidalPool {request.name}: {error}")
        except ProtocolError as error:
            return denied(str(error))
        return ALLOWED
