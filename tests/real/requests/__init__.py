"""Random requests about built-in kinds, answered by kube-apiserver and by our API server, and compared."""
