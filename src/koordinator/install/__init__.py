"""Installing Koordinator: typed values → all objects, in the order in which they are applied.

`objects.objects` is pure. Plain manifests (`deploy/`), the Helm chart (`deploy/chart/koordinator`) and
`koordinator install` are three ways to bring the same objects to a cluster.
"""
