"""Stand between kubelet and container runtime: CRI over gRPC, or Docker over HTTP, with hooks around some calls."""
