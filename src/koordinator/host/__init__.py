"""Reaching a node: names into files, the texts of those files into values, and `host.Host` that reads and writes them.

Modules without `files` in their arguments are pure functions of text. Source: behaviour/koordlet-observe 3 and 4;
behaviour/koordlet-act 3.
"""
