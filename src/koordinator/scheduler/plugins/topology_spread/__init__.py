"""PodTopologySpread: pods of a kind spread evenly over zones, nodes or any other label of nodes."""
