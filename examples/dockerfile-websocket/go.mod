module example.com/dockerfile-websocket

go 1.25

require github.com/coder/websocket v1.8.14
