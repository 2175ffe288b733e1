"""The Python interface, and what it shares with the command line: hosts that are selected, a bench
that is planned and begun.

It hands on nothing, because ``import orchestrator`` and every command load it: `orchestrator`
itself is its face for users.
"""
