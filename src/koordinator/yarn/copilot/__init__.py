"""The node agent of YARN: shows the NodeManager's containers to koordlet and ends those that must go."""
