"""Steps as scripts of allocations, played through the caching allocator's rules."""
