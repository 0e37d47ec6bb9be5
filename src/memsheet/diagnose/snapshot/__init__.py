"""What PyTorch's allocator recorded of itself (``torch.cuda.memory._dump_snapshot``) → what a job died of.

history     a stranger's file → events as columns of numbers, segments, settings
categories  a stack of frames → what it allocates for, and in which instant of a step
held        what is live at a moment, by component and by line
steps       where steps begin, and what grows from one to the next
what_if     the recorded requests through the simulated allocator: as it was set, and as it could be
findings    all of it for one file
judged      findings → the same verdicts, cures and sentences as of a message
"""
