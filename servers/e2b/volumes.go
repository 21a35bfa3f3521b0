package e2b

import (
	"context"
	"net/http"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// volumeSize is the size of a volume, in bytes. E2B's have none; a disk takes the
// space of what was written to it.
const volumeSize = 10 << 30

// volume is a disk as E2B's API describes it. The token would open the calls for
// the content of a volume without a sandbox, which are not served.
type volume struct {
	VolumeID string  `json:"volumeID"`
	Name     string  `json:"name"`
	Token    *string `json:"token,omitempty"`
}

func describeVolume(d *disk.Disk) volume {
	return volume{VolumeID: string(d.ID), Name: d.Name}
}

func describeOneVolume(d *disk.Disk) volume {
	v := describeVolume(d)
	v.Token = new(string)
	return v
}

// volumeMount is a volume that a sandbox mounts.
type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

func volumeRequests(mounts []volumeMount) []sandbox.VolumeRequest {
	var out []sandbox.VolumeRequest
	for _, m := range mounts {
		out = append(out, sandbox.VolumeRequest{Disk: m.Name, Path: m.Path})
	}
	return out
}

func (s *Server) createVolume(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q struct {
		Name string `json:"name"`
	}
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	resp, err := c.disks.Create(ctx, &disk.CreateDiskRequest{Project: c.project, Disk: q.Name, SizeBytes: volumeSize})
	if err != nil {
		return 0, nil, err
	}
	d, err := entity.Decode[disk.Disk](&resp.Disk)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, describeOneVolume(d), nil
}

func (s *Server) listVolumes(ctx context.Context, c *caller, _ http.ResponseWriter, _ *http.Request) (int, any, error) {
	project, err := c.projectID(ctx)
	if err != nil {
		return 0, nil, err
	}
	all, _, err := entity.List[disk.Disk](ctx, c.store, entity.Query{Project: project})
	if err != nil {
		return 0, nil, err
	}
	volumes := []volume{}
	for _, d := range all {
		if d.Status.Phase == disk.DiskPhaseReady {
			volumes = append(volumes, describeVolume(d))
		}
	}
	return http.StatusOK, volumes, nil
}

// volume returns the disk of a request, one of the caller's project.
func (c *caller) volume(ctx context.Context, id string) (*disk.Disk, error) {
	project, err := c.projectID(ctx)
	if err != nil {
		return nil, err
	}
	d, err := entity.Get[disk.Disk](ctx, c.store, schema.ID(id))
	if err == nil && d.Project != project || errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "volume %s does not exist", id)
	}
	return d, err
}

func (s *Server) volumeInfo(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	d, err := c.volume(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, describeOneVolume(d), nil
}

func (s *Server) deleteVolume(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	d, err := c.volume(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, c.disks.Delete(ctx, &disk.DiskRequest{Project: c.project, Disk: d.Name})
}
