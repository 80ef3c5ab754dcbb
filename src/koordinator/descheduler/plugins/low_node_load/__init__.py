"""LowNodeLoad: moves pods from nodes that are hot by measured usage to nodes that are cold.

`usage` reads NodeMetrics, makes limits of thresholds and sorts nodes into classes, `evict` picks pods, `cycle` waits
until a node has been hot for long enough, and puts it together. Source: behaviour/descheduler 6.
"""
