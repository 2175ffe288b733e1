"""Search for faster settings than the default: which candidates are run, and which result is
verified.
"""
