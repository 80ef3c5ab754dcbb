"""Hollow nodes: simulated kubelets and node agents for thousands of nodes in one ticker.

`usage` says what pods would use, `contention` what they get and what that does to latency, `fleet` holds both
for all nodes as arrays, `hollow` plays kubelet and node agent on a `Cluster`. Sources and limits:
docs/models.md.
"""
