"""A node of the local cluster whose pods are real processes in real cgroups: a small kubelet.

`process_node.ProcessNode` is all of it; decisions (amounts, statuses, environment, probes) are pure modules beside.
"""
