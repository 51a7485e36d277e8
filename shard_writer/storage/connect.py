"""The client of a store, by the scheme of a URL."""

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.storage.client import Client, Patience

EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "hf": "hf", "https": "http", "http": "http"}  # scheme → extra


def connect(root: str, patience: Patience, query: str = "") -> Client:
    """The client of a bucket, repository or host; `query` is sent along with each request to a web server.

    Raises SettingError when its library is not installed.
    """
    scheme = root.partition("://")[0]
    try:
        __import__("huggingface_hub" if scheme == "hf" else "obstore")
    except ImportError as error:
        raise SettingError(f"{root}: {error}; pip install 'tokentar[{EXTRAS[scheme]}]'") from None
    from tokentar.shard_writer.storage.hub import Hub
    from tokentar.shard_writer.storage.object_store import ObjectStore

    return Hub(root) if scheme == "hf" else ObjectStore(root, patience, query)
