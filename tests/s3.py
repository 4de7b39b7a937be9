"""A server that speaks as S3 does, in this process."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from urllib.request import Request, urlopen

import pytest

Uri = Callable[[], str]


@pytest.fixture(scope="module")
def s3() -> Iterator[Uri]:
    """Each call gives a prefix of its own, in a bucket that is there."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        bucket = f"bucket-{uuid.uuid4().hex}"  # what a server has lives as long as this process
        urlopen(Request(f"http://{host}:{port}/{bucket}", method="PUT")).close()
        yield lambda: f"s3://{bucket}/{uuid.uuid4().hex}"
    server.stop()
