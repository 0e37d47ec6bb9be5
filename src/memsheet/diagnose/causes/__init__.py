"""What shows a cause: tests on the figures and signs of a message, and words whose arithmetic closes."""
