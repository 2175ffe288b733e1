"""Which differences between two benches explain that one is slower: what is run again, and what is
proven by it.
"""
