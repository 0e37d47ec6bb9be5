"""A model's own code on record: a step at several sizes, cut into parts, solved as functions of size."""
