"""Room kept on nodes for pods to come: its decisions. The plugin that calls them is not there yet."""
