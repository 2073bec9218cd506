"""A certificate authority for one session, whose key never leaves this process's memory.

Only that session's sandbox trusts it, and only hosts that a credential of the session
allows are shown a certificate of it.
"""

import datetime
import ipaddress
import os
import ssl
from collections import OrderedDict

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=365)
# Clocks of clients inside are the host's own, so this is for the second in which it is made.
_BEFORE = datetime.timedelta(hours=1)
_MAX_HOSTS = 256
_NO_ENCRYPTION = serialization.NoEncryption()


class Authority:
    """Makes server contexts for hosts, each with a certificate of its own."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        # Clients check the name, so one key can serve all hosts of the session.
        self._host_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Session egress")])
        self._certificate = self._sign(
            self._name,
            self._key.public_key(),
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_key_usage(signs_certificates=True), True),
            ],
        )
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    @property
    def certificate_pem(self) -> bytes:
        """What clients have to trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context_for(self, host: str) -> ssl.SSLContext:
        """The server side of TLS for a host."""
        context = self._contexts.get(host)
        if context is None:
            context = self._contexts[host] = self._context(host)
            if len(self._contexts) > _MAX_HOSTS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(host)
        return context

    def _context(self, host: str) -> ssl.SSLContext:
        certificate = self._sign(
            # A common name has room for 64 characters only; what counts is the alternative name.
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]),
            self._host_key.public_key(),
            [
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (_key_usage(signs_certificates=False), True),
                (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
                (x509.SubjectAlternativeName([_general_name(host)]), True),
            ],
        )
        pem = self._host_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, _NO_ENCRYPTION
        ) + certificate.public_bytes(serialization.Encoding.PEM)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # The interface takes files only; this one is in memory and has no name.
        fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(fd, pem)
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        signer = self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + _VALID)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
