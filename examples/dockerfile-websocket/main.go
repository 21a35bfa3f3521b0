// Command dockerfile-websocket echoes what it is sent over a WebSocket at /ws.
package main

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/coder/websocket"
)

const version = "v1"

func main() {
	http.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "Hello from dockerfile-websocket %s\n", version)
	})
	http.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	http.HandleFunc("GET /ws", echo)
	port := os.Getenv("PORT")
	if port == "" {
		port = "9000"
	}
	log.Printf("listening on %s, version %s", port, version)
	log.Fatal(http.ListenAndServe(":"+port, nil))
}

func echo(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow()
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil {
			var closed websocket.CloseError
			if !errors.As(err, &closed) {
				log.Print(err)
			}
			return
		}
		if err := c.Write(r.Context(), kind, message); err != nil {
			log.Print(err)
			return
		}
	}
}
