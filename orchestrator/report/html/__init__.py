"""HTML pages: `page` is that of a bench, for which `charts` draws and `svg` embeds; `certificate`
that of an acceptance.

It hands on nothing, because a certificate has no charts, and needs no matplotlib.
"""
