"""YARN tasks on the batch capacity of Kubernetes nodes: the operator, and the agent of its nodes."""
