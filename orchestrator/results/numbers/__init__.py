"""The arithmetic of a table: throughput, intervals, peaks and physical limits."""
