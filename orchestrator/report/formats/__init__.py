"""A bench in the formats of other programs, one module for each format."""
