// Command guestbook keeps what is posted to it in the database that DATABASE_URL names.
package main

import (
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	_ "github.com/lib/pq"
)

func main() {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE IF NOT EXISTS entries (id serial PRIMARY KEY, text text NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = db.ExecContext(r.Context(), "INSERT INTO entries (text) VALUES ($1)", string(text))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	http.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		var text string
		err := db.QueryRowContext(r.Context(), "SELECT coalesce(string_agg(text, ',' ORDER BY id), '') FROM entries").Scan(&text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "v1", text)
	})
	log.Fatal(http.ListenAndServe(":"+os.Getenv("PORT"), nil))
}
