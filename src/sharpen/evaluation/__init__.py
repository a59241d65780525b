"""Normalisers and scores."""
