"""The node agent: what runs on each node to measure it, report it and protect its services.

The modules here decide; the loops that read the host and carry decisions out come on top of them.
"""
