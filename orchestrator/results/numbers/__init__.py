"""The arithmetic of a table: throughput, intervals, peaks and the limits of physics."""
