"""Abuse of a whole `koordinator up` (`make test-abuse`): requests made of its schemas and damaged, kills, bombs, churn.

Sizes are environment variables: REQUESTS (100,000), KILLS (50), CHURN_MINUTES (20), WATCHES (3,000), ABUSE_SEED (1).
"""
