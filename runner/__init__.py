"""The top floor: from one YAML study to runs on a cluster or this machine, and what became of them."""
