"""How data-parallel ranks divide states, an algorithm a module: what a rank keeps, and what stands around its
layers meanwhile: gathered parameters, buffers, gradients on their way.
"""
