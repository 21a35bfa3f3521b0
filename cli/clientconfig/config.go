package clientconfig

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// Config is the client configuration.
type Config struct {
	// CurrentCluster is used when nothing else names one.
	CurrentCluster string               `yaml:"current_cluster,omitempty" json:"current_cluster,omitempty"`
	Clusters       map[string]*Cluster  `yaml:"clusters,omitempty" json:"clusters,omitempty"`
	Identities     map[string]*Identity `yaml:"identities,omitempty" json:"identities,omitempty"`

	path string
}

// Cluster is one server, or several that share a store.
type Cluster struct {
	Server   string `yaml:"server" json:"server"` // unix:///path, host:port, or https://host:port with an API key
	Identity string `yaml:"identity,omitempty" json:"identity,omitempty"`
	Project  string `yaml:"project,omitempty" json:"project,omitempty"`
	// The authority that signed the server's certificate, in PEM or as a file.
	CA     string `yaml:"ca,omitempty" json:"ca,omitempty"`
	CAFile string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	// ServerName is expected in the server's certificate; empty: the host of Server.
	ServerName string `yaml:"server_name,omitempty" json:"server_name,omitempty"`
}

// Identity is the certificate and key of the client, in PEM or as files, or an API key.
type Identity struct {
	Certificate     string `yaml:"certificate,omitempty" json:"certificate,omitempty"`
	CertificateFile string `yaml:"certificate_file,omitempty" json:"certificate_file,omitempty"`
	Key             string `yaml:"key,omitempty" json:"-"`
	KeyFile         string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	APIKey          string `yaml:"api_key,omitempty" json:"-"`
}

// secret names the secret that the file has for the identity; "": none.
func (i *Identity) secret() string {
	switch {
	case i == nil:
	case i.Key != "":
		return "private key"
	case i.APIKey != "":
		return "API key"
	}
	return ""
}

// maxConfig bounds the file.
const maxConfig = 4 << 20

// Path returns the path of the configuration file:
// $XDG_CONFIG_HOME/runtime/clientconfig.yaml, else the same below ~/.config,
// or on Windows below %AppData%.
func Path() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		var err error
		if dir, err = baseDir(); err != nil {
			return "", errs.New(errs.FailedPrecondition, "find the directory of the client configuration: %w", err).
				WithHint("set XDG_CONFIG_HOME to the directory for it")
		}
	}
	return filepath.Join(dir, "runtime", "clientconfig.yaml"), nil
}

func baseDir() (string, error) {
	if runtime.GOOS == "windows" {
		return os.UserConfigDir()
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".config"), err
}

// Read parses a configuration that is not in a file of its own, as standard
// input; name is what errors call it.
func Read(name string, r io.Reader) (*Config, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	if len(b) > maxConfig {
		return nil, errs.New(errs.InvalidArgument, "%s is larger than %d bytes", name, maxConfig)
	}
	c := &Config{path: name}
	return c, parse(name, b, c)
}

// Load reads the configuration at path; an absent file is an empty one.
func Load(path string) (*Config, error) {
	c := &Config{path: path}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "client configuration: %w", err)
	}
	if st.Size() > maxConfig {
		return nil, errs.New(errs.InvalidArgument, "%s is larger than %d bytes", path, maxConfig)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "client configuration: %w", err)
	}
	if err := parse(path, b, c); err != nil {
		return nil, err
	}
	for name, id := range c.Identities {
		// On Windows the access list of the user's profile protects the file, and the mode says nothing.
		if what := id.secret(); what != "" && runtime.GOOS != "windows" && st.Mode().Perm()&0o077 != 0 {
			return nil, errs.New(errs.FailedPrecondition, "%s holds the %s of identity %s, and other users can read the file (mode %04o)", path, what, name, st.Mode().Perm()).
				WithHint("chmod 600 %s", path)
		}
	}
	return c, nil
}

func parse(path string, b []byte, c *Config) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return errs.New(errs.InvalidArgument, "%s: %w", path, err)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	if err := checkKeys(path, doc.Content[0]); err != nil {
		return err
	}
	if err := doc.Decode(c); err != nil {
		return errs.New(errs.InvalidArgument, "%s: %w", path, err)
	}
	for name, cl := range c.Clusters {
		switch {
		case cl == nil || cl.Server == "":
			return errs.New(errs.InvalidArgument, "%s: cluster %s has no server", path, name)
		case cl.Identity != "" && c.Identities[cl.Identity] == nil:
			return errs.New(errs.InvalidArgument, "%s: cluster %s names the identity %q, which the file does not define", path, name, cl.Identity)
		}
	}
	if c.CurrentCluster != "" && c.Clusters[c.CurrentCluster] == nil {
		return errs.New(errs.InvalidArgument, "%s: current_cluster is %q, which the file does not define", path, c.CurrentCluster)
	}
	return nil
}

// Known keys, by where they may be.
var (
	topKeys      = []string{"current_cluster", "clusters", "identities"}
	clusterKeys  = []string{"server", "identity", "project", "ca", "ca_file", "server_name"}
	identityKeys = []string{"certificate", "certificate_file", "key", "key_file", "api_key"}
)

func checkKeys(path string, root *yaml.Node) error {
	return eachKey(path, root, topKeys, func(key string, v *yaml.Node) error {
		inner := clusterKeys
		switch key {
		case "clusters":
		case "identities":
			inner = identityKeys
		default:
			return nil
		}
		return eachKey(path, v, nil, func(_ string, v *yaml.Node) error {
			return eachKey(path, v, inner, func(string, *yaml.Node) error { return nil })
		})
	})
}

// eachKey calls f for every key of a mapping; known nil allows every key.
func eachKey(path string, n *yaml.Node, known []string, f func(string, *yaml.Node) error) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return errs.New(errs.InvalidArgument, "%s:%d: keys and values are expected", path, n.Line)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if known != nil && !slices.Contains(known, key.Value) {
			err := errs.New(errs.InvalidArgument, "%s:%d: unknown key %q", path, key.Line, key.Value)
			if s := suggest.Nearest(key.Value, known); s != "" {
				return err.WithHint("did you mean %q?", s)
			}
			return err
		}
		if err := f(key.Value, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// Path returns the file that the configuration is kept in.
func (c *Config) Path() string { return c.path }

// Names returns the names of the clusters, sorted.
func (c *Config) Names() []string { return slices.Sorted(maps.Keys(c.Clusters)) }

// Put adds a cluster, replacing the one of that name, with an identity of its
// own unless id is nil. If another cluster has an identity of the same name,
// the new one is called idName@name. With use the cluster becomes the current
// one; without a current one, commands go to the server of this machine.
func (c *Config) Put(name string, cl *Cluster, idName string, id *Identity, use bool) {
	if c.Clusters == nil {
		c.Clusters = map[string]*Cluster{}
	}
	if c.Identities == nil {
		c.Identities = map[string]*Identity{}
	}
	if old := c.Clusters[name]; old != nil {
		delete(c.Clusters, name)
		if !c.usesIdentity(old.Identity) && (id != nil || cl.Identity != old.Identity) {
			delete(c.Identities, old.Identity)
		}
	}
	if id != nil {
		if c.Identities[idName] != nil && c.usesIdentity(idName) {
			idName += "@" + name
		}
		c.Identities[idName], cl.Identity = id, idName
	}
	c.Clusters[name] = cl
	if use {
		c.CurrentCluster = name
	}
}

func (c *Config) usesIdentity(name string) bool {
	for _, cl := range c.Clusters {
		if cl.Identity == name {
			return true
		}
	}
	return false
}

// Cluster returns a cluster by its name; NotFound, with the names that exist.
func (c *Config) Cluster(name string) (*Cluster, error) {
	if cl := c.Clusters[name]; cl != nil {
		return cl, nil
	}
	known := c.Names()
	err := errs.New(errs.NotFound, "%s has no cluster %q", c.path, name)
	switch s := suggest.Nearest(name, known); {
	case s != "":
		return nil, err.WithHint("did you mean %q?", s)
	case len(known) > 0:
		return nil, err.WithHint("it has: %s", strings.Join(known, ", "))
	}
	return nil, err.WithHint("add one with `r cluster add`")
}

// Remove removes a cluster, and its identity if no other cluster uses that. It
// returns the name of the removed identity, empty if there is none.
func (c *Config) Remove(name string) (identity string, err error) {
	cl, err := c.Cluster(name)
	if err != nil {
		return "", err
	}
	delete(c.Clusters, name)
	if c.CurrentCluster == name {
		c.CurrentCluster = ""
	}
	if c.usesIdentity(cl.Identity) {
		return "", nil
	}
	delete(c.Identities, cl.Identity)
	return cl.Identity, nil
}

// Write writes the configuration, keys included.
func (c *Config) Write(w io.Writer) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return errs.New(errs.Unavailable, "client configuration: %w", err)
	}
	return nil
}

// Save writes the configuration, readable by its owner alone. The file is
// complete or not changed.
func (c *Config) Save() error {
	var buf bytes.Buffer
	if err := c.Write(&buf); err != nil {
		return err
	}
	path := c.path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link to the file stays one
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return errs.New(errs.FailedPrecondition, "client configuration: %w", err)
	}
	if err := atomicfile.Write(path, buf.Bytes(), 0o600); err != nil {
		return errs.New(errs.Unavailable, "client configuration: %w", err)
	}
	return nil
}

// Inline returns a cluster and its identity with the content of the files that
// they name, for a configuration elsewhere. The identity is nil if the cluster
// names none.
func (c *Config) Inline(name string) (*Cluster, *Identity, error) {
	cl, err := c.Cluster(name)
	if err != nil {
		return nil, nil, err
	}
	out := *cl
	ca, err := c.pem(cl.CA, cl.CAFile)
	if err != nil {
		return nil, nil, err
	}
	out.CA, out.CAFile = string(ca), ""
	id := c.Identities[cl.Identity]
	if id == nil {
		return &out, nil, nil
	}
	cert, err := c.pem(id.Certificate, id.CertificateFile)
	if err != nil {
		return nil, nil, err
	}
	key, err := c.pem(id.Key, id.KeyFile)
	return &out, &Identity{Certificate: string(cert), Key: string(key), APIKey: id.APIKey}, err
}

// pem returns text, or the content of the file, whose path is relative to the configuration.
func (c *Config) pem(text, file string) ([]byte, error) {
	if text != "" || file == "" {
		return []byte(text), nil
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(c.path), file)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "client configuration %s: %w", c.path, err)
	}
	return b, nil
}
