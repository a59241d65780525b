"""Audio in, transcripts out."""
