"""An authority that makes certificates in a folder, with the openssl program."""
import datetime
import subprocess


def openssl(*arguments, text=None):
    return subprocess.run(["openssl", *arguments], input=text, check=True, capture_output=True,
                          text=True).stdout


class Authority:
    """Makes certificates in a folder."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.cert, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-keyout", self.key, "-out", self.cert, "-subj", f"/CN={name}",
                "-days", "30")

    def issue(self, name, san, days=30):
        """The files of a certificate and its key. days < 0: it has ended."""
        cert, key, request = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        config = self.folder / f"{name}.conf"
        (self.folder / "index.txt").write_text("")
        config.write_text(
            f"[ca]\ndefault_ca=c\n[c]\ndatabase={self.folder}/index.txt\n"
            f"serial={self.folder}/serial\nnew_certs_dir={self.folder}\n"
            "default_md=sha256\npolicy=p\nunique_subject=no\n"
            f"[p]\ncommonName=supplied\n[x]\nsubjectAltName={san}\n")
        begin = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(
            days=min(days, 0) - 1)
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
        openssl("ca", "-batch", "-config", config, "-rand_serial", "-notext",
                "-cert", self.cert, "-keyfile", self.key, "-in", request, "-out", cert,
                "-extensions", "x", "-startdate", f"{begin:%y%m%d%H%M%SZ}",
                "-enddate", f"{end:%y%m%d%H%M%SZ}")
        return cert, key
