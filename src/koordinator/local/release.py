"""Name the Kubernetes release whose API, defaults and rules the local cluster follows.

`make test-real` runs the same stories on servers of this release, so that the claim is held.
"""

KUBERNETES = "1.35.0"
