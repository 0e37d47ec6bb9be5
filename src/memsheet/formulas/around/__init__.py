"""What an engine keeps around the layers: gathered parameters, buffers, gradients on their way, states where
they are not whole.
"""
