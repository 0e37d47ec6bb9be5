"""PyTorch's caching allocator, simulated: a timeline in, what it reserves and where it runs out of memory
out. No torch here.

Every rule cites the source it was read from: pytorch/pytorch, v2.13.0. Not modelled: private pools (CUDA
graphs, torch.cuda.use_mem_pool), memory that others take from the device, and the driver's own granularity
beyond whole segments and pages.
"""
