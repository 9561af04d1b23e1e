"""The one error that bad input raises; its message names the file or field and the way out."""

from shardgym.problem.faces import public


@public("shardgym")
class InputError(ValueError):
    """Bad input: a value, file or combination that the caller can mend.

    The message is one sentence that names what is wrong (file, field, value) and what to do about it.
    The command line prints it and exits with code 2.
    """
