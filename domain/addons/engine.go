package addons

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/source"
)

// What the images of addons have (components/baseimage, apps/<engine>).
const (
	startCommand = "addon-start"
	// UsersCommand makes the users of the program those of its input: a line with name
	// and password for each. It prints version=VERSION.
	UsersCommand = "addon-users"
	// ConsoleCommand is a client for people, with all rights.
	ConsoleCommand = "addon-console"

	dataPath = "/data"
	database = "app" // name of the database, or the bucket, that apps use
	// region is the region of object stores, for the signatures of requests.
	region = "auto"
	// stopTimeout bounds the time in which a program writes its buffers to the disk when it is stopped.
	stopTimeout = time.Minute
)

// ports are the ports of the engines.
var ports = map[addon.Engine]int{addon.EnginePostgres: 5432, addon.EngineValkey: 6379, addon.EngineMysql: 3306, addon.EngineS3: 9000}

// Host returns the name of an addon in the private network of its project.
func Host(e addon.Engine, name string) string { return string(e) + "." + name + "." + appnet.Domain }

// Endpoint returns host and port of an addon.
func Endpoint(e addon.Engine, name string) string {
	return Host(e, name) + ":" + strconv.Itoa(ports[e])
}

// User returns the name of the user of a credential.
func User(credential int64) string { return fmt.Sprintf("app_%d", credential) }

// Variables returns what an attached app gets for a credential. The names do not depend
// on anything but the engine and the prefix.
func Variables(e addon.Engine, name, endpoint string, credential int64, password, prefix string) map[string]string {
	if prefix != "" {
		prefix += "_"
	}
	user := url.UserPassword(User(credential), password)
	switch e {
	case addon.EngineValkey:
		u := url.URL{Scheme: "redis", User: user, Host: endpoint, Path: "/0"}
		return map[string]string{prefix + "REDIS_URL": u.String()}
	case addon.EngineMysql:
		u := url.URL{Scheme: "mysql", User: user, Host: endpoint, Path: "/" + database}
		return map[string]string{prefix + "DATABASE_URL": u.String()}
	case addon.EngineS3:
		return map[string]string{
			prefix + "AWS_ENDPOINT_URL_S3": "http://" + endpoint, prefix + "AWS_REGION": region,
			prefix + "AWS_ACCESS_KEY_ID": User(credential), prefix + "AWS_SECRET_ACCESS_KEY": password, prefix + "BUCKET_NAME": database,
		}
	}
	// The network is the project's own; drivers that ask for TLS unless told otherwise are told.
	u := url.URL{Scheme: "postgres", User: user, Host: endpoint, Path: "/" + database, RawQuery: "sslmode=disable"}
	return map[string]string{prefix + "DATABASE_URL": u.String()}
}

// Source returns what is deployed as the app of an addon, with a disk. An addon whose
// disk was written by a version stays with that version.
func Source(a *addon.Addon, disk string) (*source.Memory, error) {
	e, version := a.Spec.Engine, a.Spec.Version
	if version == "" {
		version = a.Status.Version
	}
	image := "runtime/" + string(e)
	if version != "" {
		image += ":" + version
	}
	env := ""
	if e == addon.EngineS3 { // it tells a bucket in the host of a request from its own name
		env = "ENV ADDON_ENDPOINT=" + Endpoint(e, a.Name) + "\n"
	}
	toml := fmt.Sprintf(`name = %q
[build]
stack = "dockerfile"
[network]
egress = "none"
[services.%s]
command = [%q]
port = %d
memory = "%d"
stop_timeout = %q
health_deadline = "5m"
[services.%s.volumes.%s]
path = %q
`, a.Name, e, startCommand, ports[e], a.Spec.MemoryBytes, stopTimeout, e, disk, dataPath)
	return source.NewMemory([]source.Content{
		{Path: "Dockerfile", Data: fmt.Appendf(nil, "FROM %s\nUSER runtime\nENV HOME=/tmp\n%sCMD [%q]\n", image, env, startCommand)},
		{Path: "Procfile", Data: fmt.Appendf(nil, "%s: %s\n", e, startCommand)}, // without web
		{Path: "app.toml", Data: []byte(toml)},
	})
}
