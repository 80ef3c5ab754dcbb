"""Admission webhooks of the manager: pure mutations, the review protocol, certificates, the HTTPS server."""
