"""The Kubernetes REST protocol over HTTP in front of a `cluster.backend.Backend`.

Stock clients (kubectl, client-go, the Python client) are its users; everything about objects themselves
(versions, schemas, patches, admission) belongs to the backend.
"""

from koordinator.local.apiserver.server import ApiServer

__all__ = ["ApiServer"]
