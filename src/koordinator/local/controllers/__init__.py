"""The control loops of Kubernetes that users' manifests need: workloads, garbage, namespaces, nodes, budgets.

Each module is one controller with `__init__(cluster, factory, ...)` and `run()`; they meet in the API only.
"""
