"""What stands between kubelet and the container runtime: decisions only, the gRPC and HTTP loops are not there yet."""
