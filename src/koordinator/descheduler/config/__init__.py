"""Arguments of the plugins: how they are completed and checked. Source: behaviour/descheduler 2, 6 to 11."""

API_VERSION = "descheduler/v1alpha2"
"""The version that the file, and arguments of plugins in it, say that they have."""
