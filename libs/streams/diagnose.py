"""Why the broker cannot be reached, and which setting to look at: aiokafka reports every cause as one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

_SECONDS = 5.0


async def why_unreachable(client_options: Mapping[str, Any]) -> str:
    """Connects to each bootstrap server once more with libs.streams.client.client_options; what the first one that
    fails is wrong with, "" when all of them answer."""
    rest = {k: v for k, v in client_options.items() if k != "bootstrap_servers"}
    for host, port, _ in collect_hosts(client_options["bootstrap_servers"], randomize=False):
        try:
            async with asyncio.timeout(_SECONDS):
                connection = await create_conn(host, port, **rest)
                try:
                    await connection.send(MetadataRequest([]))
                finally:
                    connection.close()
        except (KafkaError, OSError) as error:  # TimeoutError is an OSError
            return f"{host}:{port}: " + await _cause(client_options["security_protocol"], host, port, error)
    return ""


async def _cause(protocol: str, host: str, port: int, error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        setting = "SSL_CAFILE must be the CA that signed it"
        if "match" in error.verify_message or "not valid for" in error.verify_message:
            setting = "BOOTSTRAP_SERVERS must use a name that the certificate has"
        return f"the broker's certificate is refused ({error.verify_message}); CLAWBACK_KAFKA_{setting}"
    if isinstance(error, ssl.SSLError) or (isinstance(error, TimeoutError) and protocol.endswith("SSL")):
        # A plain listener may take the handshake for the length of a request and wait for the rest.
        what = getattr(error, "reason", None) or "no answer to the handshake"
        return f"no TLS there ({what}); CLAWBACK_KAFKA_SECURITY_PROTOCOL={protocol} needs a TLS listener"
    if isinstance(error, UnsupportedSaslMechanismError):
        return "the broker refuses this kind of login; see CLAWBACK_KAFKA_SASL_MECHANISM"
    if isinstance(error, SaslAuthenticationFailed | AuthenticationFailedError):
        return "the login is refused; see CLAWBACK_KAFKA_SASL_USERNAME and CLAWBACK_KAFKA_SASL_PASSWORD"
    if not protocol.endswith("SSL") and await _speaks_tls(host, port):
        fix = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
        return f"the listener speaks TLS; set CLAWBACK_KAFKA_SECURITY_PROTOCOL={fix}"
    text = str(error) or type(error).__name__
    login = (
        "" if protocol.startswith("SASL") else "; one that demands a login needs CLAWBACK_KAFKA_SECURITY_PROTOCOL=SASL_"
    )
    return f"{text}; is a broker there (CLAWBACK_KAFKA_BOOTSTRAP_SERVERS)?{login}"


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except OSError:
        return False
    writer.close()
    return True
