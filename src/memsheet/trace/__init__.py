"""A step run on fake tensors, as a sheet."""
