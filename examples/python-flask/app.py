import os

from flask import Flask

VERSION = "v1"
app = Flask(__name__)


@app.get("/")
def index():
    return f"Hello from python-flask {VERSION}\n", {"Content-Type": "text/plain"}


@app.get("/env/<name>")
def env(name):
    return os.environ.get(name, "") + "\n", {"Content-Type": "text/plain"}


@app.get("/healthz")
def healthz():
    return "ok\n", {"Content-Type": "text/plain"}
