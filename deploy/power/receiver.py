#!/usr/bin/env python3
"""Switches machines for a NodePower with `webhook`: by ipmitool, by wakeonlan and ssh, or by MAAS.

    TOKEN=... receiver.py MACHINES.json --certificate tls.crt --key tls.key [--listen :8443]

MACHINES.json names each node: {"gpu-7": {"by": "ipmitool", "host": "bmc-7"},
"gpu-8": {"by": "wakeonlan", "host": "gpu-8", "mac": "3c:ec:ef:00:00:08"}, "gpu-9": {"by": "maas", "system": "4y3h7n"}}.
ipmitool reads IPMI_USER and IPMI_PASSWORD, MAAS needs MAAS_URL and MAAS_KEY, ssh its own keys. A machine that does not answer to ssh
counts as off only if it answers no ping either; node-power asks the kubelet's Lease besides.
"""
import argparse, hmac, http.server, json, os, ssl, subprocess, urllib.request


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=25)


def done(*command):
    result = run(*command)
    if result.returncode:
        raise RuntimeError(f"{command[0]}: {result.stderr.strip()[:200]}")
    return result.stdout


class Ipmitool:
    def __init__(self, machine):
        self.command = ["ipmitool", "-I", "lanplus", "-H", machine["host"], "-U", os.environ["IPMI_USER"], "-E", "chassis", "power"]

    def read(self):
        return "On" if done(*self.command, "status").strip().endswith("on") else "Off"

    def off(self):
        done(*self.command, "soft")

    def on(self):
        done(*self.command, "on")


class Wakeonlan:
    def __init__(self, machine):
        self.host, self.mac = machine["host"], machine["mac"]
        self.ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", self.host]

    def read(self):
        if run(*self.ssh, "true").returncode == 0:
            return "On"
        return "Changing" if run("ping", "-c", "1", "-W", "2", self.host).returncode == 0 else "Off"

    def off(self):
        done(*self.ssh, "sudo", "systemctl", "poweroff")

    def on(self):
        done("wakeonlan", self.mac)


class Maas:
    def __init__(self, machine):
        self.url = f"{os.environ['MAAS_URL']}/api/2.0/machines/{machine['system']}/?op="

    def call(self, operation, data=None):
        consumer, token, secret = os.environ["MAAS_KEY"].split(":")
        oauth = {"oauth_signature_method": "PLAINTEXT", "oauth_version": "1.0", "oauth_consumer_key": consumer,
                 "oauth_token": token, "oauth_signature": f"&{secret}"}
        header = "OAuth " + ", ".join(f'{key}="{urllib.request.quote(value)}"' for key, value in oauth.items())
        request = urllib.request.Request(self.url + operation, data, {"Authorization": header})
        with urllib.request.urlopen(request, timeout=25) as answer:
            return json.load(answer)

    def read(self):
        return {"on": "On", "off": "Off"}.get(self.call("query_power_state")["state"], "Changing")

    def off(self):
        self.call("power_off", b"stop_mode=soft")

    def on(self):
        self.call("power_on", b"")


KINDS = {"ipmitool": Ipmitool, "wakeonlan": Wakeonlan, "maas": Maas}


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 30

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def serve(self, act):
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {os.environ['TOKEN']}".encode()):
            return self.answer(401, {"error": "wrong token"})
        machine = MACHINES.get(self.path.rsplit("/", 1)[-1])
        if machine is None:
            return self.answer(404, {"error": "no such machine"})
        try:
            self.answer(200, act(KINDS[machine["by"]](machine)))
        except Exception as error:  # Whatever it is, node-power shows it and asks again.
            self.answer(502, {"error": f"{type(error).__name__}: {error}"})

    def do_GET(self):
        self.serve(lambda machine: {"power": machine.read()})

    def do_POST(self):
        self.serve(self.switch)

    def switch(self, machine):
        body = self.rfile.read(min(int(self.headers["Content-Length"]), 1024))
        {"On": machine.on, "Off": machine.off}[json.loads(body)["power"]]()
        return {}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines")
    parser.add_argument("--certificate", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--listen", default=":8443", help="address and port (default: all, 8443)")
    given = parser.parse_args()
    if not os.environ.get("TOKEN"):
        parser.error("the environment has no TOKEN: without one everybody might ask")
    with open(given.machines) as file:
        MACHINES = json.load(file)
    for name, machine in MACHINES.items():
        if machine.get("by") not in KINDS:
            parser.error(f"{given.machines}: {name}: by is one of {', '.join(KINDS)}")
    host, port = given.listen.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(given.certificate, given.key)
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    # The handshake belongs to the thread of the connection: one that says nothing holds nobody up.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(f"listens on {server.server_address[1]}", flush=True)
    server.serve_forever()
