"""Places where jobs have their results."""

from tests.places import any_url, memory_url, s3_client, s3_environment, s3_url  # noqa: F401
