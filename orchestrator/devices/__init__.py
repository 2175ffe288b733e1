"""Vendors of GPUs: a file for each with a ``VENDOR``, and nothing of the controller names one
besides.
"""
