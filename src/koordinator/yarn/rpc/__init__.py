"""Hadoop RPC as bytes: no sockets here. Source: behaviour/yarn 4."""
