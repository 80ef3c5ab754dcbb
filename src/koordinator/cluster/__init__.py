"""Reaching a Kubernetes API: the Cluster protocol, its two implementations, informers, queues, events."""
