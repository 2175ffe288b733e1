"""Features: a folder each, which the core does not know. `orchestrator.feature` says how one
registers itself.
"""
