"""Hadoop RPC as bytes: no sockets here. Source: spec 12, section 4."""
