"""Strategies of the stock Kubernetes descheduler. Each gives the pods to evict, in order. Source: behaviour/descheduler
12. `may_evict` is always the profile's filter."""
