"""Koordinator on real Kubernetes servers: `make test-real`.

What runs here: etcd, kube-apiserver with RBAC and kube-controller-manager of a Kubernetes release (`binaries`,
`servers`), hollow nodes of ours in the place of kubelets (`hollow`), and our components as processes that may do what
their manifests allow and nothing else (`components`). `cluster.RealCluster` puts them together; it offers what
`tests.e2e.cluster.Cluster` offers, so that a story is written once and runs on both kinds of server.

To add a story that belongs on both kinds: write it in `tests/e2e`, with `started(folder, …)` for the cluster.
`make test` runs it on `koordinator up`, `make test-real` on real servers. A story about `koordinator up` itself says
so with `only_local("why")`.

To add a test that needs the real servers only: write it here.

    def test_a_config_map_is_kept(real: RealCluster) -> None:  # one cluster per module, with components and two nodes
        real.kubectl("create", "configmap", "kept", "--from-literal=a=1")
        assert real.get("configmap", "kept")["data"] == {"a": "1"}

`real.kubectl`, `real.get` and `real.koordinator` act as an administrator; `real.identity("koord-manager")` is the
kubeconfig of one of our ServiceAccounts. A module that breaks things (stops servers, removes what is installed) starts
a cluster of its own: `with RealCluster.open(tmp_path, Shape(nodes=3)) as own: …`; `Shape` says what it has, and
`Shape(manager=False, scheduler=False, nodes=0, installed=False)` is bare servers in ten seconds.
"""
