"""Utterances with their references: readers of corpora, and corrupted LibriSpeech on disk."""
