"""Virtual nodes: the idle rest of one cluster, offered to another one as nodes. Source: behaviour/tidal 5."""
