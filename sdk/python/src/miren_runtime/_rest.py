"""The client of the generated operations."""

from .rest import AuthenticatedClient


class RestClient(AuthenticatedClient):
    """Makes the requests of the generated operations. Its printed form has no API key."""

    def __repr__(self) -> str:
        return f"RestClient({self._base_url!r})"
