"""Compare a bench with published tables, and recompute those tables from their own logs."""
