"""Bisect: prove which differences between two benches explain that one is slower."""
