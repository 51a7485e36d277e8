"""What can go wrong for a user, as types.

TokentarError
├── SettingError    what was asked for cannot work (also a ValueError)
├── InputError      a document, a file or a corpus that cannot be used as it is
├── SetError        a shard set that is missing, incomplete, damaged or foreign
└── StoreError      an object store that refuses or fails, or a cache without room

Every message names the place, the value seen, the value needed and the way out. The command line turns these into one
line on standard error and exit status 1; anything else that escapes is a fault of ours and shows its traceback.
"""


class TokentarError(Exception):
    """Base of all errors that a user can cause and mend."""


class SettingError(TokentarError, ValueError):
    """A flag, recipe key or argument whose value cannot work."""


class InputError(TokentarError):
    """A document, file or corpus that cannot be read or holds nothing to write."""


class SetError(TokentarError):
    """A shard set that is missing, incomplete, damaged or made for something else."""


class StoreError(TokentarError):
    """An object store that refuses or fails, an object that is not what it should be, or a cache without room."""
