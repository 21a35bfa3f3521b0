package daemon

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

// Spec says what is attached and how; it is attached.json in the volume's
// directory, from which the daemon opens the disk again after a restart.
type Spec struct {
	Version int    `json:"version"` // 1
	Store   string `json:"store"`   // URL
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	KeyFile string `json:"key_file,omitempty"`
	// OtherKeyFiles are tried if the key in KeyFile does not open the volume: a rotation
	// may have been killed, or the user has moved the file.
	OtherKeyFiles []string `json:"other_key_files,omitempty"`
	ReadOnly      bool     `json:"read_only,omitempty"`
	CacheBytes    int64    `json:"cache_bytes,omitempty"`
	MaxUnsent     int64    `json:"max_unsent,omitempty"`
	RemoteFlush   bool     `json:"remote_flush,omitempty"`
	Block         bool     `json:"block,omitempty"` // it is a block device of this machine
	NBD           []Listen `json:"nbd,omitempty"`
}

// Listen says where a disk is served by NBD: on a unix socket, or on TCP.
type Listen struct {
	Socket  string `json:"socket,omitempty"`
	Address string `json:"address,omitempty"`
	TLS     string `json:"tls,omitempty"`     // directory of certificates (nbd.LoadTLS)
	Clients bool   `json:"clients,omitempty"` // clients need a certificate
	Plain   bool   `json:"plain,omitempty"`   // TCP without TLS, for every host
}

// label is the name, or the ID.
func (s *Spec) label() string {
	if s.Name != "" {
		return s.Name
	}
	return s.ID
}

func (d *Daemon) specFile(id lsvd.ID) string {
	return filepath.Join(d.cfg.State.VolumeDir(id), host.AttachedFile)
}

// specs reads the specs of all attached disks. It reports a spec that it cannot read,
// and goes on with the others.
func (d *Daemon) specs() ([]*Spec, error) {
	dir := filepath.Join(d.cfg.State.Dir(), "volumes")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errs.Wrap(err, "read what is attached")
	}
	var out []*Spec
	for _, e := range entries {
		id, err := lsvd.ParseID(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(d.specFile(id))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var s Spec
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err == nil && (s.Version != 1 || s.ID != id.String()) {
			err = errs.New(errs.Corrupt, "version %d of volume %q", s.Version, s.ID)
		}
		if err != nil {
			d.logger.Error("what was attached cannot be read; the disk is not opened", "file", d.specFile(id), "error", err)
			continue
		}
		out = append(out, &s)
	}
	return out, nil
}

func (d *Daemon) saveSpec(id lsvd.ID, s Spec) error {
	s.Version = 1
	return host.WriteJSON(d.specFile(id), s)
}

func (d *Daemon) dropSpec(id lsvd.ID) error {
	err := os.Remove(d.specFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errs.Wrap(err, "forget that the disk is attached")
}
