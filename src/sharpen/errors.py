"""The errors that sharpen raises about its input: what was seen, what was expected, what to do."""


class SharpenError(ValueError):
    """Input that sharpen cannot use; the message says what to do about it."""


class WeightsError(SharpenError):
    """A checkpoint that is missing, damaged, of another format, or not supported."""


class AudioError(SharpenError):
    """Audio that cannot be read or holds nothing to transcribe."""
