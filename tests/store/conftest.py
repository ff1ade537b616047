"""Places where stores lie."""

from tests.places import (  # noqa: F401
    any_url,
    memory_objects,
    memory_url,
    objects,
    s3_client,
    s3_environment,
    s3_url,
)
