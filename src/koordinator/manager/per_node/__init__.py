"""Objects of which each node has one of its name, NodeMetric and NodeSLO, and the loops that keep their specs."""
