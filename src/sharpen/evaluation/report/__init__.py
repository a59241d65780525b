"""Tables, figures and pages from rows, beside the paper's numbers."""
