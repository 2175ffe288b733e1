"""Engines hand out hosts for a while and take them back: Slurm and Kubernetes, each a folder."""
