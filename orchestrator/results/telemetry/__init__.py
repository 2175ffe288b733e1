"""What the samples of the nodes say of a run: power, energy, clocks, load, traffic and errors over
the measured window.
"""
