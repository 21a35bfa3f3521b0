"""ClickHouse's HTTP interface, as far as inserts and queries go, before its real engine: server.py ADDRESS PORT DATA.

As the server of ClickHouse does, it runs the text of the parameter "query" followed by the body, with the other parameters
as settings, and answers an error of the engine with its text and the status that its code has there.
"""

import gzip
import http.server
import importlib.util
import re
import sys
import threading
import types
import urllib.parse

# The package's own __init__ imports pandas and pyarrow, which the engine does not need.
found = importlib.util.find_spec("chdb")
package = types.ModuleType("chdb")
package.__path__ = list(found.submodule_search_locations)
sys.modules["chdb"] = package
from chdb import _chdb  # noqa: E402

address, port, data = sys.argv[1], int(sys.argv[2]), sys.argv[3]
_chdb.connect(data)  # keeps the data open
engine = threading.Lock()

# Parameters of a request that are not settings.
RESERVED = {"query", "wait_end_of_query"}

# Statuses of codes of errors: CANNOT_PARSE_*, SYNTAX_ERROR, INCORRECT_DATA, TYPE_MISMATCH and the like; UNKNOWN_*.
STATUS = {code: 400 for code in (6, 25, 26, 27, 36, 38, 41, 53, 62, 69, 72, 117, 321, 441)}
STATUS |= {code: 404 for code in (16, 46, 47, 50, 56, 60, 73, 81, 115)}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if "Content-Length" in self.headers else b""
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        given = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query, keep_blank_values=True)
        text = given.get("query", [""])[0].encode() + b"\n" + body
        settings = {name: values[0] for name, values in given.items() if name not in RESERVED}
        try:
            status, answer = 200, run(text.decode(), settings)
        except Exception as e:  # the engine has its own classes only for some
            answer = str(e).encode()
            code = re.search(r"Code: (\d+)", str(e))
            status = STATUS.get(int(code.group(1)), 500) if code else 500
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


def run(text, settings):
    with engine:
        session = _chdb.connect(data)
        try:
            for name, value in settings.items():
                escaped = value.replace("\\", "\\\\").replace("'", "\\'")
                session.query(f"SET {name} = '{escaped}'", "Null")
            result = session.query(text, "TabSeparated")
            if result.has_error():
                raise RuntimeError(result.error_message())
            return result.bytes()
        finally:
            session.close()


http.server.ThreadingHTTPServer((address, port), Handler).serve_forever()
