package cluster

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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
	Server   string `yaml:"server" json:"server"` // unix:///path or host:port
	Identity string `yaml:"identity,omitempty" json:"identity,omitempty"`
	Project  string `yaml:"project,omitempty" json:"project,omitempty"`
	// The authority that signed the server's certificate, in PEM or as a file.
	CA     string `yaml:"ca,omitempty" json:"ca,omitempty"`
	CAFile string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	// ServerName is expected in the server's certificate; empty: the host of Server.
	ServerName string `yaml:"server_name,omitempty" json:"server_name,omitempty"`
}

// Identity is who the client is: certificate and key, in PEM or as files.
type Identity struct {
	Certificate     string `yaml:"certificate,omitempty" json:"certificate,omitempty"`
	CertificateFile string `yaml:"certificate_file,omitempty" json:"certificate_file,omitempty"`
	Key             string `yaml:"key,omitempty" json:"-"`
	KeyFile         string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
}

// maxConfig bounds the file.
const maxConfig = 4 << 20

// Path returns where the configuration is:
// $XDG_CONFIG_HOME/runtime/clientconfig.yaml, else below ~/.config.
func Path() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", errs.New(errs.FailedPrecondition, "find the home directory: %w", err)
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "runtime", "clientconfig.yaml"), nil
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
		if id != nil && id.Key != "" && st.Mode().Perm()&0o077 != 0 {
			return nil, errs.New(errs.FailedPrecondition, "%s holds the key of identity %s and others may read it (mode %04o)", path, name, st.Mode().Perm()).
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
			return errs.New(errs.InvalidArgument, "%s: cluster %s names the identity %q, which is not there", path, name, cl.Identity)
		}
	}
	if c.CurrentCluster != "" && c.Clusters[c.CurrentCluster] == nil {
		return errs.New(errs.InvalidArgument, "%s: current_cluster is %q, which is not there", path, c.CurrentCluster)
	}
	return nil
}

// Known keys, by where they may be.
var (
	topKeys      = []string{"current_cluster", "clusters", "identities"}
	clusterKeys  = []string{"server", "identity", "project", "ca", "ca_file", "server_name"}
	identityKeys = []string{"certificate", "certificate_file", "key", "key_file"}
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

// Put adds a cluster with the identity for it, replacing those of the same
// names. It becomes the current one if use is set: with none,
// commands go to the server of this machine.
func (c *Config) Put(name string, cl *Cluster, idName string, id *Identity, use bool) {
	if c.Clusters == nil {
		c.Clusters = map[string]*Cluster{}
	}
	if c.Identities == nil {
		c.Identities = map[string]*Identity{}
	}
	c.Clusters[name], c.Identities[idName] = cl, id
	if use {
		c.CurrentCluster = name
	}
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
	if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
		return errs.New(errs.FailedPrecondition, "client configuration: %w", err)
	}
	if err := atomicfile.Write(c.path, buf.Bytes(), 0o600); err != nil {
		return errs.New(errs.Unavailable, "client configuration: %w", err)
	}
	return nil
}

// pem returns text, or what is in the file, whose path is relative to the configuration.
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
