"""Operations over shape-only tensors, recorded, played backward and given numbers."""
