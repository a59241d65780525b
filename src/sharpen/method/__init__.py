"""The paper: a hypothesis tree, the searches that grow it, entropies. Knows nothing of speech or of any model class."""
