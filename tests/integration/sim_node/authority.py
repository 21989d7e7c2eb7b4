"""Authority: makes certificates, for mutual TLS."""
from __future__ import annotations

import os
import subprocess


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Makes certificates. Its own, and those of the hosts and operators that it vouches for."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.dir = str(directory)
        os.makedirs(self.dir)
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test",
                "-days", "2", "-keyout", self.dir + "/ca.key", "-out", self.dir + "/ca.crt")

    def issue(self, name: str, days: int = 2, trusted: Authority | None = None) -> str:
        """A directory with ca.crt, tls.crt and tls.key. `days` negative: it has run out."""
        made = os.path.join(self.dir, name)
        os.makedirs(made)
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                "-keyout", made + "/tls.key", "-out", made + "/tls.csr")
        with open(made + "/names", "w") as names:
            names.write("subjectAltName=DNS:localhost,IP:127.0.0.1")
        openssl("x509", "-req", "-in", made + "/tls.csr", "-CA", self.dir + "/ca.crt", "-CAkey", self.dir + "/ca.key",
                "-CAcreateserial", "-days", str(days), "-extfile", made + "/names", "-out", made + "/tls.crt")
        with open((trusted or self).dir + "/ca.crt") as ca, open(made + "/ca.crt", "w") as copy:
            copy.write(ca.read())
        return made
