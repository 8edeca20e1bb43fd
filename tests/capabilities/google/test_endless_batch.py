"""A batch whose body never ends."""

from integration.api.api_support import Server
from integration.api.server.test_hostile_requests import PART, refusal_of_an_endless_body


async def test_batch_is_read_no_further_than_its_limit(api: Server) -> None:
    limit = 4 * 2**20
    message = f"The request's body is larger than the limit of {limit} bytes."
    assert await refusal_of_an_endless_body(api, "/batch") == (413, limit + len(PART), message)
