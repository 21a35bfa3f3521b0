package appconfig

import (
	"maps"
	"math"
	"path"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"miren.dev/runtime/pkg/crontime"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// volumes reads the volumes of a service: a table for each disk, by its name.
func (p *parser) volumes(to *[]Volume) field {
	return field{named(schema.NamePattern, object(p.volume(&Volume{}), "path")), func(key string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			p.fail(key, "%s must be a table: [%s.NAME-OF-A-DISK]", key, key)
			return
		}
		if len(m) > MaxVolumes {
			p.fail(key, "%s has %d disks, but must have at most %d", key, len(m), MaxVolumes)
		}
		paths := map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			at := key + "." + name
			if !schema.ValidName(name) {
				p.fail(at, "disk %q must be lower-case letters, digits and dashes, not beginning or ending with a dash, at most %d", name, schema.MaxName)
			}
			d := Volume{Disk: name}
			p.table(p.volume(&d)).set(at, m[name])
			if other, taken := paths[d.Path]; d.Path == "" {
				p.fail(at, `%s needs path, where it is mounted, such as "/data"`, at)
			} else if taken {
				p.fail(at+".path", "%s.path is %s, where the disk %s is mounted already", at, d.Path, other)
			}
			paths[d.Path] = name
			p.checkSnapshots(at, &d)
			*to = append(*to, d)
		}
	}}
}

func (p *parser) volume(d *Volume) table {
	return table{
		"path":      p.mountPath(&d.Path),
		"size":      p.diskSize(&d.SizeBytes),
		"read_only": p.boolean(&d.ReadOnly),
		"snapshots": p.snapshots(&d.Snapshots),
	}
}

func (p *parser) snapshots(to **Snapshots) field {
	keys := func(s *Snapshots) table {
		return table{
			"cron":      p.text(&s.Cron),
			"time_zone": p.text(&s.TimeZone),
			"keep":      p.integer(&s.Keep, 1, MaxSnapshotKeep),
			"keep_for":  p.duration(&s.KeepFor, MinSnapshotEvery, math.MaxInt64),
		}
	}
	return field{object(keys(&Snapshots{}), "cron"), func(key string, v any) {
		*to = &Snapshots{}
		p.table(keys(*to)).set(key, v)
	}}
}

func (p *parser) checkSnapshots(key string, d *Volume) {
	s := d.Snapshots
	if s == nil {
		return
	}
	at := key + ".snapshots"
	switch {
	case d.ReadOnly:
		p.fail(at, "%s is for the service that writes to the disk, not with read_only", at)
	case s.Cron == "":
		p.fail(at, `%s needs cron, the times of snapshots, such as "30 3 * * *"`, at)
	default:
		p.times(at+".cron", s.Cron, s.TimeZone)
	}
}

// times refuses times that cron cannot read.
func (p *parser) times(key, cron, zone string) {
	if _, err := crontime.Parse(cron, zone); err != nil {
		p.keep(p.line(key), errs.New(errs.InvalidArgument, "%s%s: %w", p.prefix(key), key, err).WithHint("%s", errs.HintOf(err)))
	}
}

// writers refuses two services that write to the same disk.
func (p *parser) writers(key string, services []Service) {
	by := map[string]string{}
	for _, s := range services {
		for _, v := range s.Volumes {
			if v.ReadOnly {
				continue
			}
			if other, taken := by[v.Disk]; taken {
				at := key + "." + s.Name + ".volumes." + v.Disk
				p.fail(at, "service %s writes to the disk %s, as does service %s: set read_only = true for one of them", s.Name, v.Disk, other)
			}
			by[v.Disk] = s.Name
		}
	}
}

func (p *parser) mountPath(to *string) field {
	return field{&jsonschema.Schema{Type: "string", Pattern: "^/[^/]", MaxLength: jsonschema.Ptr(MaxMountPath)}, func(key string, v any) {
		p.text(to).set(key, v)
		if *to != "" && (!path.IsAbs(*to) || path.Clean(*to) != *to || *to == "/" || len(*to) > MaxMountPath) {
			p.fail(key, "%s %q must be an absolute path below /, without . and .., at most %d bytes", key, *to, MaxMountPath)
		}
	}}
}

func (p *parser) diskSize(to **int64) field {
	return field{amount(MinSize), func(key string, v any) {
		n, ok := bytes(v)
		switch {
		case !ok:
			p.fail(key, `%s must be a size such as "10GB"`, key)
		case n < MinSize || n > MaxSize:
			p.fail(key, "%s is %d bytes, but must be between %dMiB and %dTiB", key, n, MinSize>>20, int64(MaxSize)>>40)
		case n%SizeMultiple != 0:
			p.fail(key, "%s is %d bytes, but must be a multiple of %d", key, n, SizeMultiple)
		default:
			*to = &n
		}
	}}
}

func (p *parser) boolean(to *bool) field {
	return field{&jsonschema.Schema{Type: "boolean"}, func(key string, v any) {
		b, ok := v.(bool)
		if !ok {
			p.fail(key, "%s must be true or false, not %s", key, typeName(v))
		}
		*to = b
	}}
}
