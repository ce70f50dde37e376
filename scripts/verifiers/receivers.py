"""Plays the lines of `vectors` to the receivers of the guide, as a sender would, and counts what they enter.

    receivers.py <folder with node_modules, and with go/receiver if that could be built>
"""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from standardwebhooks import Webhook

EXAMPLES = Path(__file__).parents[2] / "examples" / "receivers"
AT_ONCE = 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(port, vector, body, length=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {
        "webhook-id": vector["id"],
        "webhook-timestamp": vector["time"],
        "webhook-signature": vector["standard"],
        "content-type": "application/json",
        "content-length": str(length or len(body)),
    }
    connection.request("POST", "/webhooks", body, headers)
    return connection.getresponse().status


def wait_for(port, process):
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"{process.args} ended by itself")


def play(name, command, vector):
    port = free_port()
    text = {**vector, "id": vector["id"] + "_text"}
    signed_at = datetime.fromtimestamp(int(vector["time"]), timezone.utc)
    text["standard"] = Webhook(vector["secret"]).sign(text["id"], signed_at, "no JSON")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*command, str(port), str(Path(folder, "shop.db"))]
        environment = {**os.environ, "WEBHOOK_SECRET": vector["secret"]}
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            wait_for(port, process)
            body = base64.b64decode(vector["body"])
            with ThreadPoolExecutor(AT_ONCE) as threads:
                statuses = list(threads.map(lambda _: post(port, vector, body), range(AT_ONCE)))
            statuses += [post(port, vector, body), post(port, vector, body + b" "), post(port, vector, b"", 2_000_000)]
            statuses += [post(port, {**vector, "standard": odd}, body) for odd in ["v1", "v1,a", "v1,\xe9", "a,b,c"]]
            statuses += [post(port, vector, b"", "-1"), post(port, vector, b"", "many")]
            statuses += [post(port, text, b"no JSON")]
        finally:
            process.kill()
            entered = process.communicate()[0].splitlines()
    expected = [204] * (AT_ONCE + 1) + [401, 413] + [401] * 4 + [400] * 2 + [204]
    if statuses != expected or entered != [f"entered {vector['id']}", f"entered {text['id']}"]:
        raise SystemExit(f"{name} answered {statuses} and said {entered}")


# A module finds its packages by the folder that it lies in.
script = shutil.copy(EXAMPLES / "receiver.mjs", sys.argv[1])
receivers = {"receiver.py": [sys.executable, str(EXAMPLES / "receiver.py")], "receiver.mjs": ["node", str(script)]}
built = Path(sys.argv[1], "go", "receiver")
if built.exists():
    receivers["receiver.go"] = [str(built)]
count = 0
for vector in map(json.loads, sys.stdin):
    for name, command in receivers.items():
        play(name, command, vector)
    count += 1
print(f"The guide's receivers: {count} events, {AT_ONCE} times at once, entered once each by {', '.join(receivers)}")
