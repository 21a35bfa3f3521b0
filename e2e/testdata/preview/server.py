"""A server for the test of previews: HTTP, server-sent events, WebSocket."""
import base64
import hashlib
import http.server
import itertools
import json
import struct
import sys
import threading

visits = itertools.count(1)
more = threading.Semaphore(0)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/":
            self.answer(b"visit %d\n" % next(visits))
        elif path == "/request":
            self.answer(json.dumps({"path": self.path, "headers": dict(self.headers)}).encode())
        elif path == "/events":
            self.events()
        elif path == "/ws":
            self.websocket()
        else:
            self.send_error(404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/more":
            more.release()
        self.answer(body)

    def events(self):
        """Sends an event, and one for each POST /more."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for n in range(1, 4):
            self.wfile.write(b"data: %d\n\n" % n)
            self.wfile.flush()
            more.acquire()

    def websocket(self):
        """Echoes text messages until the client closes."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            op, n = head[0] & 15, head[1] & 127
            if n == 126:
                n, = struct.unpack(">H", self.rfile.read(2))
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
            self.wfile.write(bytes([0x80 | op]) + (bytes([n]) if n < 126 else struct.pack(">BH", 126, n)) + data)
            self.wfile.flush()
            if op == 8:
                return

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer((sys.argv[1], 3000), Handler).serve_forever()
