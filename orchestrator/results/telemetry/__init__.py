"""Figures from the samples of nodes over the measured window: power, energy, clocks, load, traffic
and errors.
"""
