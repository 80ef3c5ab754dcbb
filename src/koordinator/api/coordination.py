"""Typed view of Lease: node heartbeats and leader election."""

from typing import ClassVar

from koordinator.api.meta import Object, Resource, ViewPart


class LeaseSpec(ViewPart, frozen=True, kw_only=True):
    """Times are RFC 3339 texts with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="coordination.k8s.io", version="v1", kind="Lease", plural="leases"
    )

    spec: LeaseSpec = LeaseSpec()
