"""Vendors of GPUs: a file for each with a ``VENDOR``. Besides, `engines/kubernetes/hosts.py` knows
the names of their resources in pods, and the feature ``audit`` their PCI ids.
"""
