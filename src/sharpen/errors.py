"""Errors and warnings about the user's input. A message says what was seen, what was expected and what to do."""


class SharpenError(ValueError):
    """Input that sharpen cannot use."""


class WeightsError(SharpenError):
    """A checkpoint that is missing, damaged or not supported."""


class WeightsWarning(UserWarning):
    """A checkpoint that works, with something to know about it."""


class AudioError(SharpenError):
    """Audio that cannot be read, or has no samples."""


class AudioTooLongError(AudioError):
    """More audio than the caller accepts."""


def reason(error: Exception) -> str:
    """The error for a list of failures: our own by their message, others with their type."""
    return str(error) if isinstance(error, SharpenError) else f"{type(error).__name__}: {error}"
