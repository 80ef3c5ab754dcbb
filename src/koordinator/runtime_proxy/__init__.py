"""Decide between kubelet and the container runtime; the gRPC and HTTP loops are not there yet."""
