"""Cluster-level loops: Batch resources, node metrics policy, colocation profiles, webhooks."""
