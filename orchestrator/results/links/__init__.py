"""Measurements other than training: collectives and pairs of nodes."""
