"""Whether nodes and links are what they should be: the evidence of an acceptance against its bars, and its certificate."""

from orchestrator.analysis.accept.certificate import Certificate, certificate_of

__all__ = ["Certificate", "certificate_of"]
