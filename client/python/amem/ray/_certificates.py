"""Certificates for the brokers of one cluster.

The key of their authority stays in the controller's memory, and a node's key never leaves the node. The authority makes no other
certificates. docs/security.md says what the owner of a certificate may do.
"""
from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import os
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from amem.errors import InvalidArgumentError

DAYS = 30
_EARLIER = datetime.timedelta(days=1)  # clocks of nodes differ
_BOTH_ENDS = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
_PEM = serialization.Encoding.PEM


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(issuer)).public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER).not_valid_after(now + datetime.timedelta(days=DAYS)))


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
                         key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                         decipher_only=False)


class Authority:
    """Makes certificates, which are valid for `DAYS` days. Any thread. `name`: the authority's name in the certificates."""

    def __init__(self, name: str) -> None:
        self._subject = f"amem.ray {name}"
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = (_builder(self._subject, self._subject, self._key.public_key())
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_usage(signs=True), critical=True)
                .sign(self._key, hashes.SHA256()))
        self.certificate: bytes = made.public_bytes(_PEM)
        """The authority's own certificate, as PEM: a node's ca.crt."""

    def sign(self, request: bytes, ip: str) -> bytes:
        """A certificate, as PEM, for the key of a signing request (PEM).

        The caller names the owner, and the certificate uses only the key of the request. InvalidArgumentError: the request or `ip`
        is not valid, or the key in the request has not signed it.
        """
        try:
            asked = x509.load_pem_x509_csr(request)
            address = ipaddress.ip_address(ip)
        except ValueError as error:
            raise InvalidArgumentError(f"cannot make a certificate for {ip}: {error}") from None
        key = asked.public_key()
        if not asked.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidArgumentError(f"cannot make a certificate for {ip}: the key in the request has not signed the request")
        made = (_builder(ip, self._subject, key)
                .add_extension(x509.SubjectAlternativeName([x509.IPAddress(address)]), critical=False)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(_usage(signs=False), critical=True)
                # A broker that leads is a client of the others.
                .add_extension(x509.ExtendedKeyUsage(_BOTH_ENDS), critical=False)
                .sign(self._key, hashes.SHA256()))
        certificate: bytes = made.public_bytes(_PEM)
        return certificate


@dataclasses.dataclass(frozen=True)
class Identity:
    """A node's key and its signing request, both PEM."""

    key: bytes
    request: bytes

    @staticmethod
    def make() -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(_name("amemd")).sign(key, hashes.SHA256())
        plain = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Identity(plain, request.public_bytes(_PEM))

    def write(self, directory: str, certificate: bytes, authority: bytes) -> None:
        """Writes the files of amemd's control.tls to a new directory that only this user may read."""
        os.mkdir(directory, 0o700)
        for name, content in (("ca.crt", authority), ("tls.crt", certificate), ("tls.key", self.key)):
            path = pathlib.Path(directory, name)
            path.touch(0o600)
            path.write_bytes(content)
