"""What a job died of, as a screen."""
