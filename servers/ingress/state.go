package ingress

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// State is the input of a table: the fields of entities that matter to
// requests, at one position of the store.
type State struct {
	Token     schema.Token `json:"token"`
	Node      id.Node      `json:"node,omitempty"` // of the ingress; the addresses are those of its sandboxes
	Apps      []App        `json:"apps,omitempty"`
	Routes    []Route      `json:"routes,omitempty"`
	TCP       []TCPRoute   `json:"tcp,omitempty"`
	Sandboxes []Sandbox    `json:"sandboxes,omitempty"`
	Previews  []Preview    `json:"previews,omitempty"`
	Guests    []Guest      `json:"guests,omitempty"`
	// Services are those that take requests, those that sleep too. nil: not known, as in the file of an earlier version.
	Services []Service `json:"services"`
}

// Service is a service of a version of an app.
type Service struct {
	App     schema.ID `json:"app"`
	Name    string    `json:"name"`
	Version schema.ID `json:"version"`
}

// App is the part of an app that the ingress uses.
type App struct {
	ID        schema.ID       `json:"id"`
	Name      string          `json:"name"`
	Versions  []Share         `json:"versions,omitempty"`  // those that serve, the active one first
	Deploying bool            `json:"deploying,omitempty"` // a deployment is under way
	Away      string          `json:"away,omitempty"`      // what visitors read while it is under maintenance; empty: it is not
	Created   schema.Revision `json:"created,omitempty"`   // the oldest app with a name has the local host name
}

// Share is a version that serves, and its share of the requests to the hosts of its app.
type Share struct {
	Version schema.ID `json:"version"`
	Weight  int64     `json:"weight,omitempty"`
	Preview string    `json:"preview,omitempty"` // a route of this preview leads to this version alone, which then has no share
}

// Route maps a host and path to a service of an app.
type Route struct {
	ID      schema.ID `json:"id"`
	Host    string    `json:"host"` // exact, "*.suffix" or "*"
	Path    string    `json:"path"`
	App     schema.ID `json:"app"`
	Service string    `json:"service"`
	Preview string    `json:"preview,omitempty"` // the preview of the app to which it leads; empty: to the versions that have shares
	// Settings is the JSON of app.RouteSettings; empty: none. A string, for a Route
	// is comparable.
	Settings string `json:"settings,omitempty"`

	Project schema.ID       `json:"project,omitempty"`
	Created schema.Revision `json:"created,omitempty"` // the project with the oldest route of a host has the host
}

// Sandbox is a sandbox that takes requests.
type Sandbox struct {
	ID      schema.ID `json:"id"`
	App     schema.ID `json:"app"`
	Version schema.ID `json:"version"`
	Service string    `json:"service"`
	Address string    `json:"address"`          // host:port; of a remote one empty
	Remote  bool      `json:"remote,omitempty"` // it is on another node, and not reached but by Port
	Port    int64     `json:"port,omitempty"`   // it is on a runner, where this port is reached through the server
	H2C     bool      `json:"h2c,omitempty"`    // it speaks HTTP/2 without TLS
}

// Preview is a port of a sandbox that is served.
type Preview struct {
	ID      schema.ID `json:"id"`
	Sandbox schema.ID `json:"sandbox"`
	Port    int64     `json:"port"` // 0: every port without a preview of its own
	Public  bool      `json:"public,omitempty"`
	Key     string    `json:"key"`               // public key of tokens, in hex
	Expires int64     `json:"expires,omitempty"` // Unix milliseconds; 0: never
}

// Guest is a sandbox that has previews.
type Guest struct {
	ID      schema.ID `json:"id"`
	Running bool      `json:"running,omitempty"`
	Address string    `json:"address,omitempty"` // IP address; empty: it has no network here, or does not run
	Remote  bool      `json:"remote,omitempty"`  // it runs on another node
	Ended   bool      `json:"ended,omitempty"`
}

const stateMagic = "runtime-ingress-table 2 "

func saveState(path string, s *State) error { return saveFile(path, stateMagic, s) }

// saveFile replaces the file atomically and durably.
func saveFile(path, magic string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	f, err := atomicfile.Create(path, 0o600)
	if err != nil {
		return err
	}
	defer f.Abort()
	w := bufio.NewWriter(f)
	fmt.Fprintf(w, "%s%x\n", magic, sum)
	w.Write(body)
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Commit()
}

// loadState reads the file. Errors: NotFound, Corrupt, Unavailable.
func loadState(path string) (*State, error) {
	s := new(State)
	if err := loadFile(path, stateMagic, s); err != nil {
		return nil, err
	}
	return s, nil
}

// loadFile reads a file of saveFile into v. Errors: those of loadState.
func loadFile(path, magic string, v any) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.NotFound, "no file %s", path)
	}
	if err != nil {
		return errs.New(errs.Unavailable, "read %s: %w", path, err)
	}
	head, body, ok := bytes.Cut(b, []byte("\n"))
	sumText, isTable := bytes.CutPrefix(head, []byte(magic))
	if !ok || !isTable {
		return errs.New(errs.Corrupt, "%s is not a file of this version", path)
	}
	sum := sha256.Sum256(body)
	if hex.EncodeToString(sum[:]) != string(sumText) {
		return errs.New(errs.Corrupt, "%s fails its checksum", path)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return errs.New(errs.Corrupt, "%s: %w", path, err)
	}
	return nil
}
