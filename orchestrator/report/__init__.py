"""Output of a summary for people and for programs. Nothing is computed here: all numbers come from
`results.summary`.
"""
