"""YARN tasks on the batch capacity of Kubernetes nodes: decisions and wire formats, the loops are not there yet."""
