"""Define what travels on the wire: typed views, labels and annotations with their codecs, quantities, QoS."""
