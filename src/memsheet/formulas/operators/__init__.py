"""The operators of a block, each written down once: what training's and servers' times, and widths, are made
of.
"""
