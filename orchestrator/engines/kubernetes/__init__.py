"""Kubernetes: its API by the program ``kubectl``, and pods as hosts."""
