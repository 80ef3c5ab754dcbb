"""Run the past of a cluster again with batch beside it: over arrays, by the live components' decisions."""
