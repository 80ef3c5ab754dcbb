"""Which Kubernetes the local cluster says it is: the one whose API, defaults and rules it follows.

`make test-real` runs the same stories on servers of this release, so that the claim is held.
"""

KUBERNETES = "1.35.0"
