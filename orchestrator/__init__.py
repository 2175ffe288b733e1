"""A distributed job orchestrator over SSH that benchmarks deep-learning training on clusters."""

__version__ = "0.1.0"
