"""A step run on a real device, as a sheet and a record."""
