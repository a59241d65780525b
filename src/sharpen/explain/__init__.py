"""What adaptation changed, for a reader."""
