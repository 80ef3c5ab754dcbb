"""Random lives of workloads, led on kube-controller-manager and on our controllers alike."""
