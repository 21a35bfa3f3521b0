// Package appconfig reads what a source folder says about its app: app.toml,
// in .runtime/ or at the root, and Procfile at the root.
//
//	name = "shop"                    # the app's name; else the folder's
//	release = "bin/migrate"          # runs once before a new version gets traffic
//
//	[build]
//	stack = "go"                     # dockerfile, go, python, ruby, php, java, rust, deno, node, static; else detected
//	dockerfile = "deploy/Dockerfile" # else Dockerfile at the root, if there is one
//	target = "prod"                  # stage of the Dockerfile
//	package = "./cmd/shop"           # Go: the main package; Node: the workspace; Java: the module; Rust: the program
//	command = "npm run build:prod"   # Node: instead of the build script; Python: when the source is installed
//	output = "dist"                  # static, Node: the folder to serve
//	fallback = "index.html"          # static, Node: the file for paths that do not exist; "none" for none
//	version = "1.26"                 # of the language
//	packages = ["libpq5"]            # Debian packages, there when it is built and when it runs
//	args = { KEY = "value" }         # build arguments
//	secrets = ["NPM_TOKEN"]          # variables of the app (r app env set --secret) that steps of the build may read
//
//	[env]
//	LOG_LEVEL = "info"
//
//	[network]                        # of all services and tasks
//	egress = "list"                  # what they reach outside the project: all, list, none; else all, and list with allow
//	allow = ["api.example.com"]      # with list: networks, addresses, domains, *.DOMAIN
//	deny = ["203.0.113.0/24"]
//	allow_from = ["shop"]            # apps of the project that may connect to this one; else all
//
//	[services.web]
//	command = "bin/server --listen"  # a string is for the shell, a list is not
//	port = 8080
//	replicas = 2
//	health_path = "/healthz"
//	health_deadline = "30s"
//	checks.live = { path = "/live", interval = "10s", timeout = "10s", failures = 3 } # or false: no check
//	cpu = 0.5                        # CPUs; also "500m"
//	memory = "512MB"
//	pids = 1024
//	stop_timeout = "10s"
//	env = { WORKERS = "4" }
//
//	[services.web.volumes.shop-data] # the name of a disk
//	path = "/data"                   # where it is mounted
//	size = "10GB"                    # it is created with this size if it does not exist
//	read_only = false                # true: any number of sandboxes may mount it
//	snapshots = { cron = "30 3 * * *", time_zone = "Europe/Berlin", keep = 7, keep_for = "720h" } # taken regularly
//
//	[preview]                        # how a preview differs from the active version
//	release = true                   # the release command runs for it too
//	services = ["worker"]            # that it runs besides web
//	env = { MAIL = "off" }           # comes after every other, secrets included
//
//	[git]                            # what a git push to the server does
//	branch = "main"                  # the branch whose pushes are deployed; else main or master
//	previews = true                  # a push of another branch becomes a preview of its name; else it is refused
//	folders = { shop = "apps/shop" } # of a monorepo: the folder of each app; only at the root
//
//	[addons]                         # made by the first deployment, as APP-db and APP-cache
//	db = "postgres"                  # gives DATABASE_URL
//	cache = {kind = "valkey", size = "1GB"}
//
//	[tasks.cleanup]                  # runs to its end, at times or by `r task run`
//	command = "bin/cleanup"
//	schedule = "30 3 * * *"          # as cron writes it; also @daily, "@every 90m"; absent: by hand only
//	time_zone = "Europe/Berlin"      # else UTC
//	overlap = "skip"                 # allow, replace: when it is due while a run goes on
//	catch_up = "5m"                  # how late it may begin after a time at which no server ran
//	timeout = "1h"
//	cpu = 0.5                        # also memory, pids and env, as of a service
//
//	[routes."shop.example.com/api"]  # a host, with or without a path
//	service = "api"                  # else web
//	timeout = "30s"                  # until an answer must begin
//	max_body = "10MiB"               # of a request
//	allow = ["10.1.0.0/16"]          # networks whose clients are admitted
//	rate = 20                        # requests of a client per second
//	burst = 100                      # at once
//	compress = true
//	sticky = true
//	error_pages = { 503 = "busy.html" } # files of the source
//
// An unknown key is an error with its line and the key that may have been
// meant. A Procfile adds the services that app.toml does not name, the
// command of those that have none there, and the release command ("release: ...") unless app.toml has one.
// Nothing has a default here: absent is absent.
package appconfig

import (
	"errors"
	"io"
	"io/fs"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Names of the files, in the order in which they are looked for.
var fileNames = []string{".runtime/app.toml", "app.toml"}

const (
	procfileName = "Procfile"
	releaseName  = "release" // name of the Procfile line that is no service
)

// maxFile bounds how much of one file is read, in bytes.
const maxFile = 1 << 20

// Config is the content of a source folder's configuration files.
type Config struct {
	// File is the path of app.toml: ".runtime/app.toml"; empty when there is
	// none.
	File string
	// Procfile reports whether there is a Procfile.
	Procfile bool
	Name     string
	Build    Build
	Env      map[string]string
	Network  *Network
	Preview  *Preview
	Git      Git
	Addons   []Addon   // in the order of app.toml
	Services []Service // in the order of the files, app.toml first
	Tasks    []Task    // in the order of app.toml
	Routes   []Route   // in the order of app.toml
	// Release is a command that runs once, in the environment of a new version, before the version gets traffic.
	Release []string
}

// Addon is a database or store that the app uses. Empty fields are left to the defaults.
type Addon struct {
	Name        string
	Kind        string // as AddonKinds
	Version     string
	Prefix      string // of its variables
	SizeBytes   *int64
	MemoryBytes *int64
}

// Network says what the app reaches, and which apps reach it.
type Network struct {
	Egress      string // all, list or none; empty: the source does not say
	Allow, Deny []string
	Restricted  bool // only the apps in AllowFrom reach it
	AllowFrom   []string
}

// Build says how the image is made. Empty fields are left to detection.
type Build struct {
	Stack      string
	Dockerfile string // path below the root, with slashes
	Target     string
	Package    string
	Command    string
	Output     string
	Fallback   string
	Version    string
	Packages   []string
	Args       map[string]string
	Secrets    []string // names of the app's variables that steps of the build may read
}

// Service is a process of the app. A nil pointer, zero duration and empty
// string are absent.
type Service struct {
	Name           string
	Command        []string // empty: the image's
	Port           *int64
	Replicas       *int64
	Scale          *Scale // instead of Replicas
	Concurrency    *int64 // requests in flight per sandbox that are aimed at, with Scale
	Protocol       string // of ServiceProtocol
	HealthPath     string
	HealthDeadline *time.Duration
	CPUMillis      *int64
	MemoryBytes    *int64
	PIDs           *int64
	StopTimeout    *time.Duration
	Env            map[string]string
	Live           *LiveCheck
	Volumes        []Volume // by name of the disk
}

// Task is a command that runs to its end. A nil pointer and an empty string are
// absent.
type Task struct {
	Name        string
	Command     []string
	Schedule    string // empty: it runs by hand only
	TimeZone    string
	Overlap     string
	CatchUp     *time.Duration
	Timeout     *time.Duration
	CPUMillis   *int64
	MemoryBytes *int64
	PIDs        *int64
	Env         map[string]string
}

// LiveCheck is the check that finds hung processes of a service. What is nil or empty has its default.
type LiveCheck struct {
	Off      bool // there is none
	Path     string
	Interval *time.Duration
	Timeout  *time.Duration
	Failures *int64
}

// Volume is a disk that the sandboxes of a service mount.
type Volume struct {
	Disk      string // its name
	Path      string // where it is mounted; absolute
	SizeBytes *int64 // size with which it is created if it does not exist; nil: it must exist
	ReadOnly  bool
	Snapshots *Snapshots // nil: the schedule of the disk stays as it is
}

// Snapshots says when snapshots of a disk are taken, and which of them are kept.
type Snapshots struct {
	Cron     string
	TimeZone string         // "": UTC
	Keep     *int64         // nil: the default, or with KeepFor the largest number
	KeepFor  *time.Duration // nil: any age
}

// Writes returns the name of a disk that the service writes to, "" if there is
// none. Such a service has at most one sandbox at a time.
func (s *Service) Writes() string {
	for _, v := range s.Volumes {
		if !v.ReadOnly {
			return v.Disk
		}
	}
	return ""
}

// Service returns the service of a name, or nil.
func (c *Config) Service(name string) *Service {
	for i := range c.Services {
		if c.Services[i].Name == name {
			return &c.Services[i]
		}
	}
	return nil
}

// Load reads the files of a source folder. A folder without any gives an empty Config. Mistakes in the files have class
// InvalidArgument and name file and line.
func Load(fsys fs.FS) (*Config, error) {
	c := &Config{}
	for _, name := range fileNames {
		text, err := read(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if c.File != "" {
			return nil, errs.New(errs.InvalidArgument, "there are both %s and %s", c.File, name).WithHint("keep one of them")
		}
		if c, err = Parse(name, text); err != nil {
			return nil, err
		}
		if err := c.readPages(fsys); err != nil {
			return nil, err
		}
	}
	text, err := read(fsys, procfileName)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	services, err := parseProcfile(procfileName, text)
	if err != nil {
		return nil, err
	}
	c.Procfile = true
	for _, s := range services {
		switch have := c.Service(s.Name); {
		case s.Name == releaseName && have == nil:
			if len(c.Release) == 0 {
				c.Release = s.Command
			}
		case have == nil:
			c.Services = append(c.Services, s)
		case len(have.Command) == 0:
			have.Command = s.Command
		}
	}
	return c, nil
}

// read returns a file's text; fs.ErrNotExist when there is none.
func read(fsys fs.FS, name string) (string, error) {
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err != nil {
		return "", errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	if len(b) > maxFile {
		return "", errs.New(errs.InvalidArgument, "%s is larger than %d bytes", name, maxFile)
	}
	return string(b), nil
}
