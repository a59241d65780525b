"""Transcripts over HTTP: the requests of all clients adapt in one episode, each on its own norms."""
