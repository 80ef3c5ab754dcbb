"""Reaching a node: names into files, and the texts of those files into values.

Everything here is a pure function of text and of a root that is an argument; nothing opens a file yet.
Source: spec 10, sections 3 and 4; spec 11, section 3.
"""
