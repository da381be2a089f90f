"""A rope_server as a process. Needs only Python."""

import signal
import subprocess
import urllib.error
import urllib.request

LIMIT_S = 60


class RopeServer:
    """Serves once it is made. A context manager, which kills it if it still runs.

    Attributes:
        said: the lines that it prints: a line for each --listen, then the metrics page.
        targets: "127.0.0.1:PORT" or "unix:PATH", in the order of --listen.
        address: the first of them.
        metrics: "127.0.0.1:PORT"; empty: it has no metrics page.
    """

    def __init__(self, program, *flags, log=subprocess.DEVNULL):
        flags = [str(flag) for flag in flags]
        listens = sum(flag.startswith("--listen=") for flag in flags) or 1
        has_metrics = any(flag.startswith("--metrics_listen=") for flag in flags)
        self.process = subprocess.Popen([program, *flags], stdout=subprocess.PIPE, stderr=log,
                                        text=True)
        self.said = [self.process.stdout.readline() for _ in range(listens + has_metrics)]
        if not self.said[-1]:
            self.kill()
            raise RuntimeError(f"rope_server did not start: it printed {self.said}")
        last = [line.split()[-1] for line in self.said]
        self.targets = last[:listens]
        self.address = self.targets[0]
        self.metrics = last[-1].split("/")[2] if has_metrics else ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def get(self, path):
        """(status, text) of the metrics port."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.metrics}{path}", timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def kill(self):
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()

    def stop(self):
        """The exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)
