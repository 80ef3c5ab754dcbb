"""Services that are asked over HTTP about nodes (`extenders` in the configuration). Source: behaviour/scheduler B8."""
