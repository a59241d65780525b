"""The errors that sharpen raises about its input: what was seen, what was expected, what to do."""


class SharpenError(ValueError):
    """Input that sharpen cannot use; the message says what to do about it."""


class WeightsError(SharpenError):
    """A checkpoint that is missing, damaged, of another format, or not supported."""


class AudioError(SharpenError):
    """Audio that cannot be read or holds nothing to transcribe."""


def reason(error: Exception) -> str:
    """What to say of it in a list of failures: our own messages speak for themselves, others need their kind."""
    return str(error) if isinstance(error, SharpenError) else f"{type(error).__name__}: {error}"
