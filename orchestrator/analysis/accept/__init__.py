"""Whether nodes and links are what they should be: the evidence of an acceptance against its bars, and its certificate."""

from orchestrator.analysis.accept.certificate import Certificate, certificate_of
from orchestrator.analysis.accept.nodes import is_chosen

__all__ = ["Certificate", "certificate_of", "is_chosen"]
