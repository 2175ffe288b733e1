"""What is measured other than training: collectives and pairs of nodes."""
