"""What a run computes, how it is computed and stored, and how an answer is scored."""
