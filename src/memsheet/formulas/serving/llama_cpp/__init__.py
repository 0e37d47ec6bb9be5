"""llama.cpp and its fork: buffers of every device, by ggml's own allocator (``server`` puts them
together).
"""
