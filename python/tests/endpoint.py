"""A progress endpoint over HTTPS with the rules of the operator's (operator/src/progress/endpoint.rs)."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Optional

# The Python that is tested: hack/python names the program that runs it with the C library it was built for.
PYTHON = os.environ.get("PYTHON", sys.executable)
MAX_BODY = 64 * 1024
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainjobs/bert/status"


def make_ca(folder: Path, name: str) -> Path:
    """A certificate authority of its own; the path of its certificate."""
    certificate, settings = folder / f"{name}.crt", folder / f"{name}.cnf"
    # Not by -addext: OpenSSL 1.1 adds to what its own file says, so that an extension comes twice.
    settings.write_text(
        "[req]\ndistinguished_name=subject\nx509_extensions=authority\n[subject]\n[authority]\n"
        "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n"
    )
    _openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-keyout",
        str(folder / f"{name}.key"),
        "-out",
        str(certificate),
        "-config",
        str(settings),
    )
    return certificate


def make_server(folder: Path, ca: str, name: str, host: str = "localhost") -> Path:
    """A server's certificate and key in one file, signed by the authority `ca`."""
    request, pem = folder / f"{name}.csr", folder / f"{name}.pem"
    _openssl(
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        f"/CN={name}",
        "-keyout",
        str(folder / f"{name}.key"),
        "-out",
        str(request),
    )
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName=DNS:{host}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
    _openssl(
        "x509",
        "-req",
        "-days",
        "2",
        "-in",
        str(request),
        "-CA",
        str(folder / f"{ca}.crt"),
        "-CAkey",
        str(folder / f"{ca}.key"),
        "-CAcreateserial",
        "-extfile",
        str(extensions),
        "-out",
        str(pem),
    )
    pem.write_text(pem.read_text() + (folder / f"{name}.key").read_text())
    return pem


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


class Endpoint:
    """A running endpoint. `token` is the only one that it accepts; `answers` holds failures to answer with first."""

    def __init__(self, pem: Path, token: str) -> None:
        self.token = token
        self.reports: list[dict[str, Any]] = []
        self.refused: list[int] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.headers: dict[str, str] = {}
        self.lock = threading.Lock()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def setup(self) -> None:
                # Here and not in the thread that accepts: a client that does not trust us must not keep others waiting.
                self.request = endpoint._context.wrap_socket(self.request, server_side=True)
                super().setup()

            def finish(self) -> None:
                super().finish()
                self.request.close()

            def do_POST(self) -> None:
                code, headers, body = endpoint.judge(self)
                with endpoint.lock:
                    if code != 200:
                        endpoint.refused.append(code)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("localhost", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"https://localhost:{self._server.server_address[1]}{PATH}"

    def serve(self, pem: Path) -> None:
        """Another certificate for new connections."""
        self._context.load_cert_chain(pem)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def judge(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        length = int(request.headers.get("Content-Length", "0"))
        body = request.rfile.read(min(length, MAX_BODY + 1))
        if request.path != PATH:
            return 404, {}, b"{}"
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not token:
            return 401, {}, b"{}"
        with self.lock:
            if self.answers:
                code, headers = self.answers.pop(0)
                return code, headers, b"{}"
            if token != self.token:
                return 403, {}, b"{}"
        if len(body) > MAX_BODY:
            return 413, {}, b"{}"
        try:
            report = json.loads(body)["trainerStatus"]
        except (ValueError, KeyError):
            return 400, {}, b"{}"
        with self.lock:
            self.reports.append(report)
        return 200, {"Content-Type": "application/json", **self.headers}, body

    def last(self) -> Optional[dict[str, Any]]:
        with self.lock:
            return self.reports[-1] if self.reports else None


def metrics(report: dict[str, Any]) -> dict[str, str]:
    return {metric["name"]: metric["value"] for metric in report.get("metrics", [])}
