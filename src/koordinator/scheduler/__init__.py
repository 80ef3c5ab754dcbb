"""Placing pods: the node table, the plugin framework and the plugins."""
