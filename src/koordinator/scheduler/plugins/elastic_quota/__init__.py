"""ElasticQuota: teams share a cluster through a tree of guaranteed and maximal amounts."""
