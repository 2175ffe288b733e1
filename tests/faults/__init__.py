"""The faults of a cluster as rows: injected into a lab with real sshd, judged from outside,
counted.

See ``docs/results/reliability.md``.
"""
