"""A certificate for localhost, which is its own authority."""
import pathlib
import subprocess


def make_certificate(folder):
    """Makes the two files by openssl, valid for a day: their paths, PEM, certificate and key."""
    cert, key = pathlib.Path(folder, "cert.pem"), pathlib.Path(folder, "key.pem")
    subprocess.run([*"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256".split(),
                    *"-nodes -days 1 -subj /CN=localhost -addext".split(),
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key
