"""What is on disk of a bench: `runs/`, `.orch/`, seals and archives.

May use `inventory`, `logs` and `plan`.
"""
