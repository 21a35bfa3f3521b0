package appconfig

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"miren.dev/runtime/pkg/errs"
)

func ptr[T any](v T) *T { return &v }

// everyKey has each key of app.toml but those of disks.
const everyKey = `
name = "shop"
release = "bin/migrate --all"

[build]
stack = "go"
fallback = "./index.html"
package = "./cmd/shop"
version = "1.26"
packages = ["libpq5"]
args = { KEY = "value" }
secrets = ["NPM_TOKEN"]

[env]
LOG_LEVEL = "info"
DEBUG = true
N = 3

[network]
allow = ["api.example.com", "203.0.113.0/24"]
deny = ["203.0.113.9"]
allow_from = ["blog"]

[preview]
release = true
services = ["worker"]
env = { MAIL = "off" }

[services.web]
command = "bin/server --listen"
port = 3000
replicas = 2
health_path = "/healthz"
health_deadline = "30s"
checks.live = { path = "/live", interval = "20s", timeout = "5s", failures = 4 }
cpu = 0.5
memory = "512MB"
pids = 64
stop_timeout = "0s"

[services.web.env]
WORKERS = "4"

[services.api]
port = 4000
concurrency = 20
scale = { min = 0, max = 5, idle = "10m", cpu = 70, suspend = true }

[tasks.nightly]
command = "bin/nightly"
schedule = "30 3 * * *"
time_zone = "Europe/Berlin"
overlap = "replace"
catch_up = "1h"
timeout = "2h"
memory = "1GB"

[tasks.by-hand]
command = ["bin/once", "-v"]

[routes."shop.example.com/api"]
service = "another"
timeout = "30s"
max_body = "10MiB"
allow = ["10.0.0.0/8"]
rate = 20
burst = 100
compress = true
sticky = false
error_pages = { 503 = "./busy.html", default = "error.html" }

[routes."*"]

[services.another]
command = ["a", "b c"]
checks.live = false
cpu = "250m"
memory = "1.5GiB"
`

func TestParseReadsEveryKey(t *testing.T) {
	got, err := Parse("app.toml", everyKey)
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		File: "app.toml", Name: "shop",
		Release: []string{"/bin/sh", "-c", "exec bin/migrate --all"},
		Build:   Build{Stack: "go", Fallback: "index.html", Package: "cmd/shop", Version: "1.26", Packages: []string{"libpq5"}, Args: map[string]string{"KEY": "value"}, Secrets: []string{"NPM_TOKEN"}},
		Env:     map[string]string{"LOG_LEVEL": "info", "DEBUG": "true", "N": "3"},
		Network: &Network{Egress: "list", Allow: []string{"api.example.com", "203.0.113.0/24"}, Deny: []string{"203.0.113.9"}, Restricted: true, AllowFrom: []string{"blog"}},
		Preview: &Preview{Release: true, Services: []string{"worker"}, Env: map[string]string{"MAIL": "off"}},
		Services: []Service{
			{Name: "web", Command: []string{"/bin/sh", "-c", "exec bin/server --listen"}, Port: ptr(int64(3000)), Replicas: ptr(int64(2)),
				HealthPath: "/healthz", HealthDeadline: ptr(30 * time.Second),
				Live: &LiveCheck{Path: "/live", Interval: ptr(20 * time.Second), Timeout: ptr(5 * time.Second), Failures: ptr(int64(4))}, CPUMillis: ptr(int64(500)), MemoryBytes: ptr(int64(512 << 20)),
				PIDs: ptr(int64(64)), StopTimeout: ptr(time.Duration(0)), Env: map[string]string{"WORKERS": "4"}},
			{Name: "api", Port: ptr(int64(4000)), Concurrency: ptr(int64(20)), Scale: &Scale{Min: ptr(int64(0)), Max: ptr(int64(5)), Idle: ptr(10 * time.Minute), CPU: ptr(int64(70)), Suspend: true}},
			{Name: "another", Command: []string{"a", "b c"}, Live: &LiveCheck{Off: true}, CPUMillis: ptr(int64(250)), MemoryBytes: ptr(int64(3 << 29))},
		},
		Tasks: []Task{
			{Name: "nightly", Command: []string{"/bin/sh", "-c", "exec bin/nightly"}, Schedule: "30 3 * * *", TimeZone: "Europe/Berlin", Overlap: "replace",
				CatchUp: ptr(time.Hour), Timeout: ptr(2 * time.Hour), MemoryBytes: ptr(int64(1 << 30))},
			{Name: "by-hand", Command: []string{"bin/once", "-v"}},
		},
		Routes: []Route{
			{Host: "shop.example.com", Path: "/api", Service: "another", Timeout: ptr(30 * time.Second), MaxBody: ptr(int64(10 << 20)), Allow: []string{"10.0.0.0/8"},
				Rate: ptr(int64(20)), Burst: ptr(int64(100)), Compress: ptr(true), Sticky: ptr(false), ErrorPages: map[string]string{"503": "busy.html", "default": "error.html"}},
			{Host: "*", Path: "/"},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	tests := []struct{ name, text, message, hint string }{
		{"unknown key", "nme = \"x\"\n", `app.toml:1: unknown key "nme"`, `did you mean "name"?`},
		{"unknown key in a service", "[services.web]\nport = 1\n\nreplica = 2\n", `app.toml:4: unknown key "services.web.replica"`, `did you mean "services.web.replicas"?`},
		{"unknown key, dotted", "services.web.healthpath = \"/\"\n", `app.toml:1: unknown key "services.web.healthpath"`, `did you mean "services.web.health_path"?`},
		{"unknown table", "\n[service.web]\nport = 1\n", `app.toml:2: unknown key "service"`, `did you mean "services"?`},
		{"a policy that is none", "\n[network]\negress = \"listed\"\n", `app.toml:3: network.egress "listed" is none of all, list, none`, ""},
		{"rules that do not fit", "\n[network]\negress = \"none\"\nallow = [\"example.com\"]\n", "app.toml:2: network: network policy none has no rules", "use the policy list"},
		{"no rule", "[network]\nallow = [\"https://example.com/\"]\n", "network: allow: ", "write a network"},
		{"no app", "[network]\nallow_from = [\"Shop!\"]\n", `network.allow_from has "Shop!"`, ""},
		{"nothing near", "zzz = 1\n", `unknown key "zzz"`, "keys here are: addons, build, env, git, name, network, preview, release, routes, services, tasks"},
		{"the first of several", "[services.web]\nprt = 1\n[build]\nstak = 1\n", "app.toml:2:", "services.web.port"},
		{"inside a multi-line list", "[build]\npackages = [\n  \"a\",\n]\nbad = 1\n", "app.toml:5:", ""},
		{"after a multi-line string", "[env]\nA = \"\"\"\n[services.web]\nx = 1\n\"\"\"\n[build]\nbad = 1\n", "app.toml:7:", ""},
		{"syntax", "name = \n", "app.toml:1:", ""},
		{"twice", "name = \"a\"\nname = \"b\"\n", "app.toml:2:", ""},
		{"kind", "[services.web]\nport = \"80\"\n", "app.toml:2: services.web.port must be an integer, not a string", ""},
		{"range", "[services.web]\nport = 70000\n", "services.web.port is 70000, but must be between 0 and 65535", ""},
		{"replicas", "[services.web]\nreplicas = -1\n", "between 0 and 1000", ""},
		{"duration", "[services.web]\nhealth_deadline = \"soon\"\n", `"soon" is not a duration`, ""},
		{"duration too short", "[services.web]\nhealth_deadline = \"1ms\"\n", "must be between 1s", ""},
		{"memory", "[services.web]\nmemory = \"lots\"\n", "amount of memory", ""},
		{"too much memory", "[services.web]\nmemory = 9223372036854775807\n", "at most 16384GiB", ""},
		{"too little memory", "[services.web]\nmemory = \"1MB\"\n", "at least 32MiB", ""},
		{"cpu", "[services.web]\ncpu = \"fast\"\n", "number of CPUs", ""},
		{"too little cpu", "[services.web]\ncpu = 0\n", "between 0.01", ""},
		{"live check", "[services.web]\nchecks.live = 3\n", "app.toml:2: services.web.checks.live must be false (no check) or a table, not an integer", ""},
		{"path of the live check", "[services.web.checks.live]\npath = \"x\"\n", "must begin with /", ""},
		{"timeout of the live check", "[services.web.checks.live]\ntimeout = \"1h\"\n", "must be between 1s and 30s", ""},
		{"unknown check", "[services.web.checks]\nlife = false\n", `unknown key "services.web.checks.life"`, `did you mean "services.web.checks.live"?`},
		{"protocol", "[services.web]\nprotocol = \"spdy\"\n", "is none of http, h2c", ""},
		{"health path", "[services.web]\nhealth_path = \"healthz\"\n", "must begin with /", ""},
		{"empty command", "[services.web]\ncommand = \" \"\n", "services.web.command is empty", ""},
		{"command", "[services.web]\ncommand = 3\n", "must be a list of strings", ""},
		{"service name", "[services.Web]\nport = 1\n", `service name "Web"`, ""},
		{"app name", "name = \"My App\"\n", "must be lower-case letters", ""},
		{"app name with a dash at the end", "name = \"shop-\"\n", "not ending in a dash", ""},
		{"app name that is too long", "name = \"" + strings.Repeat("a", MaxAppName+1) + "\"\n", "at most 40", ""},
		{"stack", "[build]\nstack = \"cobol\"\n", "none of dockerfile, go, python, php, ruby, java, rust, deno, node, static", ""},
		{"path out", "[build]\ndockerfile = \"../Dockerfile\"\n", "inside the source folder", ""},
		{"absolute path", "[build]\noutput = \"/etc\"\n", "inside the source folder", ""},
		{"package name", "[build]\npackages = [\"a; rm -rf /\"]\n", "cannot be one", ""},
		{"variable name", "[env]\n\"A-B\" = \"x\"\n", "cannot be the name of a variable", ""},
		{"variable value", "[env]\nA = [1]\n", "env.A must be a string, not a list", ""},
		{"table", "services = 3\n", "must be a table", ""},
		{"volumes", "[services.web]\nvolumes = 3\n", "app.toml:2: services.web.volumes must be a table", ""},
		{"volume without a path", "[services.web.volumes.data]\nsize = \"1GB\"\n", "app.toml:1: services.web.volumes.data needs path", ""},
		{"relative path of a volume", "[services.web.volumes.data]\npath = \"data\"\n", "must be an absolute path", ""},
		{"root as a volume", "[services.web.volumes.data]\npath = \"/\"\n", "must be an absolute path", ""},
		{"unclean path of a volume", "[services.web.volumes.data]\npath = \"/a/../etc\"\n", "must be an absolute path", ""},
		{"two volumes at a path", "[services.web.volumes]\na = { path = \"/x\" }\nb = { path = \"/x\" }\n", "app.toml:3: services.web.volumes.b.path is /x, where the disk a", ""},
		{"name of a disk", "[services.web.volumes.Data]\npath = \"/data\"\n", `disk "Data" must be`, ""},
		{"size of a disk", "[services.web.volumes.data]\npath = \"/data\"\nsize = \"big\"\n", "app.toml:3: services.web.volumes.data.size must be a size", ""},
		{"size of a disk that is too small", "[services.web.volumes.data]\npath = \"/data\"\nsize = \"1MB\"\n", "between 16MiB and 16TiB", ""},
		{"size of a disk that is no multiple", "[services.web.volumes.data]\npath = \"/data\"\nsize = 100000001\n", "multiple of 4096", ""},
		{"key of a volume", "[services.web.volumes.data]\npath = \"/data\"\nreadonly = true\n", `unknown key "services.web.volumes.data.readonly"`, `did you mean "services.web.volumes.data.read_only"?`},
		{"times of snapshots", "[services.web.volumes.data]\npath = \"/data\"\nsnapshots.cron = \"61 * * * *\"\n", "app.toml:3: services.web.volumes.data.snapshots.cron: ", ""},
		{"time zone of snapshots", "[services.web.volumes.data]\npath = \"/data\"\nsnapshots = { cron = \"@daily\", time_zone = \"Mars\" }\n", "Mars", ""},
		{"snapshots without times", "[services.web.volumes.data]\npath = \"/data\"\nsnapshots.keep = 3\n", "data.snapshots needs cron", ""},
		{"snapshots of a disk that is read", "[services.web.volumes.data]\npath = \"/data\"\nread_only = true\nsnapshots.cron = \"@daily\"\n", "is for the service that writes", ""},
		{"snapshots that are kept", "[services.web.volumes.data]\npath = \"/data\"\nsnapshots = { cron = \"@daily\", keep = 0 }\n", "must be between 1 and 1000", ""},
		{"age of snapshots", "[services.web.volumes.data]\npath = \"/data\"\nsnapshots = { cron = \"@daily\", keep_for = \"1s\" }\n", "snapshots.keep_for", ""},
		{"read_only", "[services.web.volumes.data]\npath = \"/data\"\nread_only = 1\n", "must be true or false, not an integer", ""},
		{"scale and replicas", "[services.web]\nreplicas = 1\nscale = { max = 3 }\n", "app.toml:3: services.web.scale: replicas says a fixed number", "remove replicas"},
		{"scale without max", "[services.web]\nscale = { min = 1 }\n", "it needs max", "scale = {min = 1, max = 5}"},
		{"contrary bounds", "[services.web]\nscale = { min = 3, max = 2 }\n", "min is 3, but max is 2", ""},
		{"a worker that sleeps", "[services.worker]\ncommand = \"work\"\nscale = { min = 0, max = 2, cpu = 70 }\n", "no request would wake it", "set min = 1"},
		{"a worker by requests", "[services.worker]\ncommand = \"work\"\nscale = { max = 2 }\n", "cannot follow requests", "add cpu = 70"},
		{"concurrency alone", "[services.web]\nconcurrency = 5\n", "it counts only for a number", "add scale"},
		{"a suspend that never comes", "[services.web]\nscale = { max = 2, suspend = true }\n", "with min = 1 it never does", "set min = 0"},
		{"a suspended writer", "[services.web]\nscale = { min = 0, max = 1, suspend = true }\n[services.web.volumes.data]\npath = \"/data\"\n", "keep the disk data", "remove suspend"},
		{"many writers by scale", "[services.web]\nscale = { max = 2 }\n[services.web.volumes.data]\npath = \"/data\"\n", "one sandbox at a time can do", "read_only = true"},
		{"idle", "[services.web]\nscale = { max = 2, idle = \"1ms\" }\n", "services.web.scale.idle", ""},
		{"more than one writer", "[services.web]\nreplicas = 2\n[services.web.volumes.data]\npath = \"/data\"\n",
			"app.toml:2: services.web.replicas is 2, but the service writes to the disk data", "read_only = true in [services.web.volumes.data]"},
		{"two services that write", "[services.a.volumes.data]\npath = \"/a\"\n[services.b.volumes.data]\npath = \"/b\"\n",
			"app.toml:3: service b writes to the disk data, as does service a", ""},
		{"service", "[services]\nweb = 3\n", "must be a table", ""},
		{"task without a command", "[tasks.a]\ntimeout = \"1m\"\n", "app.toml:1: tasks.a needs command", ""},
		{"route", "\n[routes.\"https://x\"]\n", "app.toml:2: route \"https://x\" is no host name", ""},
		{"size of a route", "[routes.x]\nmax_body = \"much\"\n", "app.toml:2: routes.x.max_body must be a size", ""},
		{"burst alone", "[routes.x]\nburst = 1\n", "app.toml:2: routes.x has burst, but no rate", ""},
		{"status", "[routes.x]\nerror_pages.200 = \"a\"\n", "the name must be a status", ""},
		{"page outside", "[routes.x]\nerror_pages.503 = \"../a\"\n", "must be the path of a file of the source", ""},
		{"schedule", "[tasks.a]\ncommand = \"x\"\nschedule = \"soon\"\n", `app.toml:3: tasks.a.schedule: "soon" is not a schedule`, "five fields"},
		{"time zone", "[tasks.a]\ncommand = \"x\"\nschedule = \"@daily\"\ntime_zone = \"Mars\"\n", `time zone "Mars" is not known`, "Europe/Berlin"},
		{"time zone alone", "[tasks.a]\ncommand = \"x\"\ntime_zone = \"UTC\"\n", "app.toml:3: tasks.a has a time zone, but no schedule", ""},
		{"overlap", "[tasks.a]\ncommand = \"x\"\noverlap = \"queue\"\n", "none of skip, allow, replace", ""},
		{"task name", "[tasks.A]\ncommand = \"x\"\n", `task name "A"`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("app.toml", tt.text)
			if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), tt.message) || !strings.Contains(errs.HintOf(err), tt.hint) {
				t.Errorf("got %v\nhint %q", err, errs.HintOf(err))
			}
		})
	}
}

// TestVolumes: a service names disks; those that only read one may be many.
func TestVolumes(t *testing.T) {
	c, err := Parse("app.toml", "[services.web]\nreplicas = 1\n[services.web.volumes.shop-data]\npath = \"/data\"\nsize = \"10GB\"\n"+
		"snapshots = { cron = \"30 3 * * *\", time_zone = \"Europe/Berlin\", keep = 9, keep_for = \"720h\" }\n"+
		"[services.reader]\nreplicas = 3\nvolumes = { shop-data = { path = \"/in\", read_only = true }, models = { path = \"/models\", read_only = true } }\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Service{
		{Name: "web", Replicas: ptr(int64(1)), Volumes: []Volume{{Disk: "shop-data", Path: "/data", SizeBytes: ptr(int64(10 << 30)),
			Snapshots: &Snapshots{Cron: "30 3 * * *", TimeZone: "Europe/Berlin", Keep: ptr(int64(9)), KeepFor: ptr(720 * time.Hour)}}}},
		{Name: "reader", Replicas: ptr(int64(3)), Volumes: []Volume{{Disk: "models", Path: "/models", ReadOnly: true}, {Disk: "shop-data", Path: "/in", ReadOnly: true}}},
	}
	if d := cmp.Diff(want, c.Services); d != "" {
		t.Error(d)
	}
}

// What the server takes as the name of an app, app.toml takes too.
func TestNetwork(t *testing.T) {
	for text, want := range map[string]Network{
		`egress = "none"`:           {Egress: "none"},
		`deny = ["example.com"]`:    {Egress: "all", Deny: []string{"example.com"}},
		`allow_from = []`:           {Restricted: true},
		`allow_from = ["a", "b"]`:   {Restricted: true, AllowFrom: []string{"a", "b"}},
		`allow = ["*.example.com"]`: {Egress: "list", Allow: []string{"*.example.com"}},
	} {
		c, err := Parse("app.toml", "[network]\n"+text+"\n")
		if err != nil || !reflect.DeepEqual(*c.Network, want) {
			t.Errorf("%s: %+v, %v, want %+v", text, c.Network, err, want)
		}
	}
}

func TestLongestAppName(t *testing.T) {
	name := strings.Repeat("a", MaxAppName)
	if c, err := Parse("app.toml", "name = \""+name+"\"\n"); err != nil || c.Name != name {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestLoadMergesProcfile(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	c, err := Load(fstest.MapFS{
		".runtime/app.toml": file("name = \"a\"\n[services.web]\nport = 1\n[services.worker]\ncommand = [\"w\"]\n"),
		"Procfile":          file("# processes\nrelease: bin/migrate\nweb: run web\nworker: not this\nclock_1: tick | tock\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.File != ".runtime/app.toml" || !c.Procfile || len(c.Services) != 3 {
		t.Fatalf("got %+v", c)
	}
	for name, want := range map[string][]string{"web": {"/bin/sh", "-c", "exec run web"}, "worker": {"w"}, "clock-1": {"/bin/sh", "-c", "tick | tock"}} {
		if s := c.Service(name); s == nil || !slices.Equal(s.Command, want) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if want := []string{"/bin/sh", "-c", "exec bin/migrate"}; !slices.Equal(c.Release, want) {
		t.Errorf("release: %q", c.Release)
	}
	c, err = Load(fstest.MapFS{"app.toml": file("release = [\"m\"]\n"), "Procfile": file("release: other\n")})
	if err != nil || !slices.Equal(c.Release, []string{"m"}) || len(c.Services) > 0 {
		t.Errorf("release in both: %+v, %v", c, err)
	}
	if c, err := Load(fstest.MapFS{}); err != nil || c.File != "" || c.Procfile {
		t.Errorf("nothing: %+v, %v", c, err)
	}
	for name, fsys := range map[string]fstest.MapFS{
		"both":         {"app.toml": file(""), ".runtime/app.toml": file("")},
		"Procfile":     {"Procfile": file("web\n")},
		"no command":   {"Procfile": file("web:\n")},
		"twice":        {"Procfile": file("web: a\nweb: b\n")},
		"service name": {"Procfile": file("9: a\n")},
		"too large":    {"app.toml": file(strings.Repeat("#", maxFile+1))},
	} {
		if _, err := Load(fsys); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShellLinesExecOneCommand(t *testing.T) {
	for line, want := range map[string]string{
		"node server.js":       "exec node server.js",
		"PORT=1 node x":        "PORT=1 node x",
		"a && b":               "a && b",
		"cd x; run":            "cd x; run",
		"exec a":               "exec a",
		"gunicorn -b :$PORT x": "exec gunicorn -b :$PORT x",
		"echo `date`":          "echo `date`",
		"if x then":            "if x then",
	} {
		if got := Shell(line); got[2] != want {
			t.Errorf("%q: %q", line, got[2])
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{"1": 1, "512MB": 512 << 20, "512mb": 512 << 20, "1GiB": 1 << 30, "1.5 Gi": 3 << 29, "2K": 2048, "10B": 10} {
		if got, ok := ParseBytes(in); !ok || got != want {
			t.Errorf("%q: %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "MB", "x", "-1MB", "1e30TB", "NaN", "1 2"} {
		if got, ok := ParseBytes(in); ok {
			t.Errorf("%q: %d", in, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("name = \"x\"\n[services.web]\nport = 1\ncommand = [\n\"a\"]\n")
	f.Add("[a]\n'b.c' = \"\"\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = Parse("app.toml", text)
		_, _ = parseProcfile("Procfile", text)
	})
}
