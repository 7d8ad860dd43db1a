"""One post to the progress address."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Optional
from urllib.parse import urlsplit

from ._environment import Environment

TIMEOUT = 5.0
"""Seconds that connecting, sending and each read may take."""
MAX_ANSWER = 64 * 1024
MAX_RETRY_AFTER = 60.0
ENERGY = "andreas-energy-joules"
MAX_DIGITS = 20


@dataclass(frozen=True)
class Failure(Exception):
    """Why a report was not accepted."""

    reason: str
    again: bool = True
    """Whether the same report may be accepted later."""
    after: Optional[float] = None
    """Seconds that the endpoint asks to wait, 0 to 60."""

    def __str__(self) -> str:
        return self.reason


def post(environment: Environment, body: bytes) -> Optional[int]:
    """Posts a report; the energy of the job so far, J, where the endpoint tells it. Token and certificates are read anew: both are renewed while the program runs.

    Proxies of the environment are not used and redirects are not followed: the token is for this address.

    Raises `Failure`.
    """
    try:
        return _post(environment, body)
    except Failure:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Failure(f"{type(error).__name__}: {error}") from error


def _post(environment: Environment, body: bytes) -> Optional[int]:
    try:
        address = urlsplit(environment.url or "")
        port = address.port or 443
    except ValueError as error:
        raise Failure(f"KUBEFLOW_TRAINER_SERVER_URL: {error}", again=False) from error
    if address.scheme != "https" or not address.hostname:
        # It may hold a password.
        shown = (environment.url or "").rpartition("@")[2]
        raise Failure(f"KUBEFLOW_TRAINER_SERVER_URL={shown}: wanted https://...", again=False)
    if environment.token_file is None:
        raise Failure("KUBEFLOW_TRAINER_SERVER_TOKEN is not set", again=False)
    token = _token(environment.token_file)
    try:
        trusted = ssl.create_default_context(cafile=str(environment.ca_file) if environment.ca_file else None)
    except OSError as error:
        raise Failure(f"KUBEFLOW_TRAINER_SERVER_CA_CERT={environment.ca_file}: {error}") from error
    connection = http.client.HTTPSConnection(address.hostname, port, timeout=TIMEOUT, context=trusted)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        path = address.path + (f"?{address.query}" if address.query else "")
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read(MAX_ANSWER)
    finally:
        connection.close()
    if answer.status // 100 != 2:
        # A body that is refused once is refused again. A token may be renewed, and a stop may be on its way.
        again = answer.status not in (400, 404, 405, 413, 415, 422)
        raise Failure(f"HTTP {answer.status}", again=again, after=_seconds(answer.getheader("Retry-After")))
    energy = answer.getheader(ENERGY) or ""
    return int(energy) if energy.isascii() and energy.isdigit() and len(energy) < MAX_DIGITS else None


def _token(file: Path) -> str:
    """The token, which no message shows.

    Raises `Failure`.
    """
    try:
        token = file.read_bytes().decode("ascii").strip()
    except OSError as error:
        raise Failure(f"KUBEFLOW_TRAINER_SERVER_TOKEN={file}: {error.strerror}") from error
    except ValueError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise Failure(f"KUBEFLOW_TRAINER_SERVER_TOKEN={file}: not one word of ASCII")
    return token


def _seconds(header: Optional[str]) -> Optional[float]:
    try:
        return min(max(float(header or ""), 0.0), MAX_RETRY_AFTER)
    except ValueError:
        return None
