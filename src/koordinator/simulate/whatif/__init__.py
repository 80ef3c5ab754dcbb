"""What co-location would bring to a cluster: its history run again over arrays, by the live components' decisions."""
