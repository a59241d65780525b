"""Policies for real models, and the checkpoints they are made from."""
