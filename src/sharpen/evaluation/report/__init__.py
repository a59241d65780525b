"""Stored rows as tables, figures and pages, beside the paper's numbers."""
