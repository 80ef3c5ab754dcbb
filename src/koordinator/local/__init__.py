"""A whole cluster in one process: store, API server, workload controllers, hollow nodes."""
