package addon

import (
	"fmt"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// engines by the names that people use for them.
var engines = map[string]Engine{
	"postgres": EnginePostgres, "postgresql": EnginePostgres,
	"valkey": EngineValkey, "redis": EngineValkey,
	"mysql": EngineMysql, "mariadb": EngineMysql,
	"s3": EngineS3, "objectstore": EngineS3, "object-store": EngineS3,
}

// ParseEngine returns the engine that a name stands for. InvalidArgument if there is none.
func ParseEngine(name string) (Engine, error) {
	e, ok := engines[strings.ToLower(name)]
	if !ok {
		return "", errs.New(errs.InvalidArgument, "there is no addon of the kind %q", name).WithHint("postgres, valkey (redis), mysql (mariadb) or s3 (objectstore)")
	}
	return e, nil
}

// DiskName returns the name of a disk of an addon.
func DiskName(name string, number int64) string {
	if number <= 1 {
		return name + "-data"
	}
	return fmt.Sprintf("%s-data-%d", name, number)
}

// Users names the disk and the users that the program of an addon is to know.
func (s *AddonStatus) Users() string {
	text := s.Disk
	for _, c := range s.Credentials {
		text += fmt.Sprintf(" %d", c.Number)
	}
	return text
}

// Settled reports whether an addon is as its spec wants it: ready, with its disk, and
// with a program that knows no user but the one that apps are to have.
func (a *Addon) Settled() bool {
	s := &a.Status
	return s.Phase == AddonPhaseReady && s.Disk == DiskName(a.Name, a.Spec.Disk) && s.Applied == s.Users() &&
		len(s.Credentials) == 1 && s.Credentials[0].Number == a.Spec.Credential
}
