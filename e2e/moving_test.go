package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
)

// testMovingGuide moves an app with its variables and the dump of its database.
func testMovingGuide(t *testing.T, g *guide) {
	g.dir = copyDir(t, "testdata/addons/guestbook")
	write(t, filepath.Join(g.dir, "app.toml"), "name = \"guestbook\"\n") // the addon is made by hand
	edit(t, filepath.Join(g.dir, "main.go"), `"v1"`, `os.Getenv("GREETING")`)
	g.file(".env", "GREETING='good morning'\n")
	g.file("dump.sql", `CREATE EXTENSION IF NOT EXISTS pgcrypto;
CREATE TABLE public.entries (id serial PRIMARY KEY, text text NOT NULL);
COPY public.entries (id, text) FROM stdin;
1	moved
\.
SELECT pg_catalog.setval('public.entries_id_seq', 1, true);
`)
	g.run("r app create", "created shop")
	g.run("r app env import")
	g.run("r addon create", "created shop-db")
	g.run("r addon console", "CREATE EXTENSION", "COPY 1")
	g.run("r deploy")
	g.run("r route set")
	g.env = append(g.env, fmt.Sprintf("ADDRESS=http://127.0.0.1:%d", g.s.port))
	g.run("curl", "good morning moved")
}
