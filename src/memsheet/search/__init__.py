"""Every plan for a cluster, accounted as arrays and ranked."""
