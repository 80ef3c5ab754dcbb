"""The workload auditor: what happened to each gang or pod on its way to nodes, and what of that is odd."""
