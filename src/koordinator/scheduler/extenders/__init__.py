"""Services that are asked over HTTP about nodes (`extenders` in the configuration). Source: spec 03, B8."""
