"""HTML pages: `page` renders a bench, with charts from `charts`, embedded by `svg`; `certificate`
renders an acceptance.

It re-exports nothing, because a certificate has no charts and needs no matplotlib.
"""
