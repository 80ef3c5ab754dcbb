"""Keep what the agent knows of the cluster and the kubelet: each state keeps one part of the `NodeView` current."""
