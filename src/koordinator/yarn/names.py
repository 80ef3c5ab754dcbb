"""Read what Kubernetes objects say about YARN."""

COMPONENT_LABEL = "app.kubernetes.io/component"
NODE_MANAGER = "node-manager"
NODE_ID_ANNOTATION = "yarn.hadoop.apache.org/node-id"
CLUSTER_ID_ANNOTATION = "yarn.hadoop.apache.org/cluster-id"
DEFAULT_CLUSTER = "__default_yarn_cluster__"
ALLOCATION_NAME = "hadoop-yarn"
"""The operator's entry among the third-party allocations of a node."""
