"""Pictures of a summary for people and for programs. They only show; every number comes from `orchestrator.results.summary`."""
