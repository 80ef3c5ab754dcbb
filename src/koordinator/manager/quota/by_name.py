"""The index of ElasticQuotas by name: names should be unique in the cluster, so it finds one as a rule."""

from collections.abc import Iterable

from koordinator.api.sigs import ElasticQuota

BY_NAME = "name"


def names_of(quota: ElasticQuota) -> Iterable[str]:
    """Return the values of the index."""
    return (quota.metadata.name,)
