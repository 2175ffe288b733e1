"""Programs that measure how fast, exact and reliable the orchestrator is."""
