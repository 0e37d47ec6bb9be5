"""A plan applied by the real engines: build the model, shard, recompute, adapt, step. The only doors to torch
are here, in trace and in measure.
"""
