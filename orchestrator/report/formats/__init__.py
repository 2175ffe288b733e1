"""A bench in the formats of other programs, one module each."""
