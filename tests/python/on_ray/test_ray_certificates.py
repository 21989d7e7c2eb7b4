"""The certificates of amem.ray: made in this process, shown to amemds."""
import datetime
import os
import pathlib
import pickle
import re
import socket
import ssl
import subprocess

import pytest

x509 = pytest.importorskip("cryptography.x509", reason="cryptography is not installed (Debian: python3-cryptography)")

from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.hazmat.primitives.serialization import Encoding  # noqa: E402

import amem  # noqa: E402
from amem.ray._certificates import DAYS, Authority, Identity  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402
from sim_node.prometheus import free_port  # noqa: E402

PEM = Encoding.PEM


def files(folder: pathlib.Path, authority: Authority, ip: str = "127.0.0.1") -> str:
    identity = Identity.make()
    identity.write(str(folder), authority.sign(identity.request, ip), authority.certificate)
    return str(folder)


def test_files_are_this_users_alone(tmp_path: pathlib.Path) -> None:
    made = files(tmp_path / "tls", Authority("job"))
    assert sorted(os.listdir(made)) == ["ca.crt", "tls.crt", "tls.key"]
    assert os.stat(made).st_mode & 0o777 == 0o700
    assert all(os.stat(os.path.join(made, name)).st_mode & 0o077 == 0 for name in os.listdir(made))


def test_what_a_certificate_says(tmp_path: pathlib.Path) -> None:
    authority = Authority("job")
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    made = x509.load_pem_x509_certificate(authority.sign(Identity.make().request, "10.0.0.7"))
    issuer.public_key().verify(made.signature, made.tbs_certificate_bytes, ec.ECDSA(made.signature_hash_algorithm))
    assert made.issuer == issuer.subject
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    said = subprocess.run(["openssl", "x509", "-noout", "-dates"], input=made.public_bytes(PEM), capture_output=True,
                          check=True)
    [dates] = re.findall(r"notAfter=(.*)", said.stdout.decode())
    left = datetime.datetime.strptime(dates, "%b %d %H:%M:%S %Y %Z") - datetime.datetime.utcnow()
    assert datetime.timedelta(DAYS - 1) < left <= datetime.timedelta(DAYS)


def test_the_key_stays_where_it_was_made() -> None:
    identity = Identity.make()
    assert b"PRIVATE" not in identity.request and b"PRIVATE" in identity.key
    assert b"PRIVATE" not in Authority("job").certificate


def test_what_is_no_request() -> None:
    authority, request = Authority("job"), Identity.make().request
    for bad, ip in ((b"nonsense", "10.0.0.1"), (request, "node1"), (request[:200] + request[210:], "10.0.0.1")):
        with pytest.raises(amem.InvalidArgumentError, match="cannot make a certificate for"):
            authority.sign(bad, ip)


def far(build: Build, tmp_path: pathlib.Path, *folders: str) -> tuple[list[Node], list[str]]:
    nodes, ports = [], []
    for number, folder in enumerate(folders):
        (tmp_path / f"node{number}").mkdir()
        nodes.append(Node(build, str(tmp_path / f"node{number}")))
        ports.append(free_port())
        nodes[-1].start_broker("--control-listen", f"127.0.0.1:{ports[-1]}", "--control-tls", folder)
    return nodes, [f"127.0.0.1:{port}" for port in ports]


@pytest.mark.parametrize("whose", ("one authority", "another authority", "another address"))
def test_amemds_take_those_of_one_authority_for_their_own_addresses(build: Build, tmp_path: pathlib.Path, whose: str) -> None:
    one = Authority("job")
    second = files(tmp_path / "two", Authority("other") if whose == "another authority" else one,
                   "10.0.0.7" if whose == "another address" else "127.0.0.1")
    nodes, addresses = far(build, tmp_path, files(tmp_path / "one", one), second)
    try:
        jobs = [node.job("train") for node in nodes]
        with amem.Cluster(addresses, nodes[0].runtime_dir) as cluster:
            if whose == "one authority":
                assert len(cluster.pause("train")) == 2
                cluster.resume("train")
            else:
                with pytest.raises(amem.Error, match=f"node '{addresses[1]}'"):
                    cluster.pause("train")
        for job in jobs:
            job.check()
        context = ssl.create_default_context(cadata=one.certificate.decode())
        with socket.create_connection(("127.0.0.1", int(addresses[0].rpartition(":")[2])), 10) as plain:
            # Who shows no certificate sees the other's, and gets no further.
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                with pytest.raises(OSError):
                    assert secure.recv(1) == b"", "it talks to who shows no certificate"
                    raise ConnectionResetError
    finally:
        for node in nodes:
            node.close()


def test_errors_come_over_whole() -> None:
    """As values of an actor's answers."""
    for code in amem.Code:
        error = pickle.loads(pickle.dumps(amem.errors.error_of(code, "rank 3 did not come")))
        assert type(error) is type(amem.errors.error_of(code, ""))
        assert (error.code, error.text) == (code, "rank 3 did not come")
