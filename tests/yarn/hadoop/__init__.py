"""A real Hadoop YARN on this machine: what it needs (`jars`), and the daemons (`bed`)."""
