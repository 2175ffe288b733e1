"""A bench against published tables, and those tables recomputed from their own logs."""
