"""Vendors of GPUs: a file for each with a ``VENDOR``. Besides, `engines/kubernetes/hosts.py` knows
the names of their resources in pods, `engines/slurm/client.py` the variables that Slurm sets, and
the feature ``audit`` their PCI ids.
"""
