"""Our plugins beside those of kube-scheduler, on random cases."""
