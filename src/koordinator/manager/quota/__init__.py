"""ElasticQuotas at admission: the tree as the webhook knows it, its rules, pods against it, profiles."""
