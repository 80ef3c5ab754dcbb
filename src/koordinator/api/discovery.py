"""Typed views of what is behind Services: Endpoints and EndpointSlices.

Their lists are plain JSON: they are made, compared and written as a whole.
"""

from typing import Any, ClassVar

from koordinator.api.meta import Object, Resource

SERVICE_NAME = "kubernetes.io/service-name"
"""Label of a slice: the Service that it is about."""
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
HEADLESS = "service.kubernetes.io/headless"
SKIP_MIRROR = "endpointslice.kubernetes.io/skip-mirror"


class EndpointSlice(Object, frozen=True, kw_only=True):
    """Some of the addresses behind a Service that have the same ports; `address_type` is IPv4, IPv6 or FQDN."""

    resource: ClassVar[Resource] = Resource(
        group="discovery.k8s.io", version="v1", kind="EndpointSlice", plural="endpointslices"
    )

    address_type: str = ""
    endpoints: list[dict[str, Any]] = []
    ports: list[dict[str, Any]] = []


class Endpoints(Object, frozen=True, kw_only=True):
    """All addresses behind the Service of the same name, in the older form."""

    resource: ClassVar[Resource] = Resource(
        group="", version="v1", kind="Endpoints", plural="endpoints", short_names=("ep",)
    )

    subsets: list[dict[str, Any]] = []
