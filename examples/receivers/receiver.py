"""Receives Postrider's deliveries. Needs `pip install standardwebhooks`.

    WEBHOOK_SECRET=whsec_... python receiver.py 8090 shop.db
"""

import os
import sqlite3
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["WEBHOOK_SECRET"])
port, file = int(sys.argv[1]), sys.argv[2]
BODY_MAX = 1 << 20


def enter(id, body):
    """The id and the effect are one transaction: both or neither. A second one with the same id waits, and then does nothing."""
    with closing(sqlite3.connect(file, timeout=10)) as db, db:
        if db.execute("INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING", (id,)).rowcount == 1:
            db.execute("INSERT INTO payments VALUES (?, ?)", (id, body))
            print("entered", id, flush=True)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            length = int(self.headers.get("content-length", ""))
        except ValueError:
            length = -1
        if length < 0:
            return self.answer(400)
        if length > BODY_MAX:
            return self.answer(413)
        body = self.rfile.read(length)  # the bytes as they came: what is parsed and printed again has another signature
        try:
            webhook.verify(body, dict(self.headers), json_parse=False)  # not every payload is JSON
        except (WebhookVerificationError, ValueError):  # the latter for signatures that are not even base64
            return self.answer(401)
        try:
            enter(self.headers["webhook-id"], body)
        except sqlite3.Error:
            return self.answer(503)  # nothing was written, so have it sent again
        self.answer(204)  # a duplicate, too

    def answer(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


with closing(sqlite3.connect(file)) as db:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
    db.execute("CREATE TABLE IF NOT EXISTS payments (id TEXT, body BLOB)")
ThreadingHTTPServer.request_queue_size = 128  # connections that wait: with the usual five, a burst is turned away
ThreadingHTTPServer(("127.0.0.1", port), Receiver).serve_forever()
