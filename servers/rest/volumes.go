package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/opt"
)

// Volume is a disk, which sessions and apps mount and which outlives them.
type Volume struct {
	Name       string    `json:"name" doc:"Name." example:"data"`
	ID         string    `json:"id" doc:"Id of the disk." example:"disk-4k2j7q"`
	State      string    `json:"state" enum:"pending,ready,failed,deleting" doc:"State."`
	SizeBytes  int64     `json:"size_bytes" doc:"Size."`
	UsedBytes  *int64    `json:"used_bytes,omitempty" doc:"Bytes that its files took when that was last read."`
	FileSystem string    `json:"file_system" enum:"ext4,xfs" doc:"File system."`
	Message    string    `json:"message,omitempty" doc:"Reason why it is not ready."`
	CreatedAt  time.Time `json:"created_at" doc:"Time of its creation."`

	Schedule *VolumeSchedule `json:"schedule,omitempty" doc:"Its scheduled snapshots; absent: none are taken."`

	TakenOverAt *time.Time `json:"taken_over_at,omitempty" doc:"Time at which it was last taken over from a node that was down; absent: never."`
	LostBytes   *int64     `json:"lost_bytes,omitempty" doc:"Bytes of acknowledged writes that the takeover has lost, at least: those that the node had reported and the store did not have."`

	TakenOverFrom  string `json:"taken_over_from,omitempty" doc:"Id of the node that it was last taken over from, whose log may have writes that the volume lacks."`
	SalvagedBytes  *int64 `json:"salvaged_bytes,omitempty" doc:"Bytes of writes that it has from the log of which it was salvaged; absent: it was not, or the number is not known."`
	SalvageDamaged *bool  `json:"salvage_damaged,omitempty" doc:"That log was damaged, and the volume has the state before the damage; absent: it was not salvaged, or that is not known."`

	LostMostBytes  *int64     `json:"lost_most_bytes,omitempty" doc:"Bytes of acknowledged writes that the takeover has lost, at most; absent: unknown."`
	LostReportedAt *time.Time `json:"lost_reported_at,omitempty" doc:"Time of the node's last report, from which lost_bytes is; absent: it made none. Writes after it are not in lost_bytes."`
}

// VolumeMount is a session or an app's sandbox that has a volume.
type VolumeMount struct {
	Container string `json:"container" doc:"Id of the container; a session has the same."`
	Path      string `json:"path" doc:"Path inside."`
	ReadOnly  bool   `json:"read_only" doc:"It cannot write to it."`
}

// VolumeDetails is a volume with what has it mounted.
type VolumeDetails struct {
	Volume
	Mounts []VolumeMount `json:"mounts" doc:"What has it mounted."`
}

// VolumeSnapshot is the state of a volume at one moment.
type VolumeSnapshot struct {
	Name      string     `json:"name" doc:"Name among those of the volume."`
	State     string     `json:"state" enum:"pending,ready,failed,deleting" doc:"State."`
	SizeBytes *int64     `json:"size_bytes,omitempty" doc:"Size of the volume then."`
	Scheduled bool       `json:"scheduled,omitempty" doc:"The schedule of the volume took it and deletes it."`
	Message   string     `json:"message,omitempty" doc:"Reason why it is not ready."`
	TakenAt   *time.Time `json:"taken_at,omitempty" doc:"Time of the state that it has."`
	CreatedAt time.Time  `json:"created_at" doc:"Time of its creation."`
}

// MountRequest is a volume that a session mounts.
type MountRequest struct {
	Volume   string `json:"volume" minLength:"1" maxLength:"63" doc:"Name of the volume." example:"data"`
	Path     string `json:"path" minLength:"2" maxLength:"512" pattern:"^/" doc:"Absolute path inside."`
	ReadOnly bool   `json:"read_only,omitempty" doc:"It cannot be written there. Many sessions may read a volume, one may write to it."`
}

func mountRequests(list []MountRequest) (out []sandbox.VolumeRequest) {
	for _, m := range list {
		out = append(out, sandbox.VolumeRequest{Disk: m.Volume, Path: m.Path, ReadOnly: opt.Of(m.ReadOnly)})
	}
	return out
}

func volumeOf(d *disk.Disk) Volume {
	return Volume{
		Name: d.Name, ID: string(d.ID), State: string(d.Status.Phase), SizeBytes: d.Spec.SizeBytes, UsedBytes: d.Status.UsedBytes,
		FileSystem: string(d.Spec.FileSystem), Message: d.Status.Message, CreatedAt: d.CreatedAt, Schedule: volumeScheduleOf(&d.Spec),
		TakenOverAt: d.Status.TakenOverAt, LostBytes: d.Status.LostBytes,
		LostMostBytes: d.Status.LostMostBytes, LostReportedAt: d.Status.LostReportedAt,
		TakenOverFrom: d.Status.TakenOverFrom, SalvagedBytes: d.Status.SalvagedBytes, SalvageDamaged: d.Status.SalvageDamaged,
	}
}

func volumeSnapshotOf(s *disk.DiskSnapshot) VolumeSnapshot {
	return VolumeSnapshot{
		Name: s.Spec.Name, State: string(s.Status.Phase), SizeBytes: s.Status.SizeBytes, Scheduled: s.Spec.Scheduled, Message: s.Status.Message,
		TakenAt: s.Status.TakenAt, CreatedAt: s.CreatedAt,
	}
}

// VolumeInput names a volume.
type VolumeInput struct {
	Name string `path:"name" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the volume." example:"data"`
}

func registerVolumes(a huma.API) {
	const tag = "volumes"
	register(a, op(http.MethodPost, "/volumes", "create-volume", tag, "Make an empty volume", status(http.StatusCreated)), createVolume)
	register(a, op(http.MethodGet, "/volumes", "list-volumes", tag, "List the volumes of the project"), listVolumes)
	register(a, op(http.MethodGet, "/volumes/{name}", "get-volume", tag, "Get a volume"), getVolume)
	register(a, op(http.MethodDelete, "/volumes/{name}", "delete-volume", tag, "Delete a volume with its data", status(http.StatusNoContent)), deleteVolume)
	register(a, op(http.MethodPost, "/volumes/{name}/resize", "resize-volume", tag, "Make a volume and its file system larger"), resizeVolume)
	register(a, op(http.MethodPut, "/volumes/{name}/schedule", "schedule-volume", tag, "Say when snapshots of a volume are taken, and which are kept"), scheduleVolume)
	register(a, op(http.MethodDelete, "/volumes/{name}/schedule", "delete-volume-schedule", tag, "Take no more snapshots of a volume; those that exist stay", status(http.StatusNoContent)), deleteVolumeSchedule)
	register(a, op(http.MethodPost, "/volumes/{name}/clones", "clone-volume", tag, "Make a volume with the content of another or of its snapshot, without copying", status(http.StatusCreated)), cloneVolume)
	register(a, op(http.MethodPost, "/volumes/{name}/salvages", "salvage-volume", tag, "Make a volume of the writes that a takeover of another has left on a node", status(http.StatusCreated)), salvageVolume)
	register(a, op(http.MethodPost, "/volumes/{name}/snapshots", "create-volume-snapshot", tag, "Keep the present state of a volume", status(http.StatusCreated)), createVolumeSnapshot)
	register(a, op(http.MethodGet, "/volumes/{name}/snapshots", "list-volume-snapshots", tag, "List the snapshots of a volume"), listVolumeSnapshots)
	register(a, op(http.MethodDelete, "/volumes/{name}/snapshots/{snapshot}", "delete-volume-snapshot", tag, "Delete a snapshot of a volume", status(http.StatusNoContent)), deleteVolumeSnapshot)
}

func disks(ctx context.Context) disk.DisksClient { return disk.NewDisksClient(callerFrom(ctx).Client) }

func findDisk(ctx context.Context, name string) (*disk.Disk, error) {
	return byName[disk.Disk](ctx, name)
}

type createVolumeInput struct {
	Body struct {
		Name       string `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name." example:"data"`
		SizeBytes  int64  `json:"size_bytes" minimum:"16777216" maximum:"17592186044416" multipleOf:"4096" doc:"Size; 300 MiB at least with xfs." example:"1073741824"`
		FileSystem string `json:"file_system,omitempty" enum:"ext4,xfs" default:"ext4" doc:"File system."`
	}
}

type createdVolume struct {
	Location string `header:"Location"`
	Body     Volume
}

func newVolume(resp *disk.DiskResponse, err error) (*createdVolume, error) {
	if err != nil {
		return nil, err
	}
	d, err := entity.Decode[disk.Disk](&resp.Disk)
	if err != nil {
		return nil, err
	}
	return &createdVolume{Prefix + "/volumes/" + d.Name, volumeOf(d)}, nil
}

func createVolume(ctx context.Context, in *createVolumeInput) (*createdVolume, error) {
	return newVolume(disks(ctx).Create(ctx, &disk.CreateDiskRequest{
		Project: callerFrom(ctx).Project(), Disk: in.Body.Name, SizeBytes: in.Body.SizeBytes, FileSystem: disk.FileSystem(in.Body.FileSystem),
	}))
}

type cloneVolumeInput struct {
	VolumeInput
	Body struct {
		Name     string `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the new volume." example:"copy"`
		Snapshot string `json:"snapshot,omitempty" maxLength:"63" doc:"Snapshot whose content it gets; absent: the present state."`

		At *time.Time `json:"at,omitempty" doc:"Instead of a snapshot: it gets the content of the newest one that is not after this time."`
	}
}

func cloneVolume(ctx context.Context, in *cloneVolumeInput) (*createdVolume, error) {
	return newVolume(disks(ctx).Clone(ctx, &disk.CloneDiskRequest{
		Project: callerFrom(ctx).Project(), Source: in.Name, Snapshot: in.Body.Snapshot, At: in.Body.At, Disk: in.Body.Name,
	}))
}

type salvageVolumeInput struct {
	VolumeInput
	Body struct {
		Name     string `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the new volume." example:"rescued"`
		Node     string `json:"node,omitempty" maxLength:"63" doc:"Name or id of the node that has the writes; absent: the one that the volume was last taken over from."`
		Takeover string `json:"takeover,omitempty" maxLength:"63" doc:"Takeover that left the writes out, as takeover-EPOCH-SEQUENCE; absent: the node has the log of one."`
	}
}

func salvageVolume(ctx context.Context, in *salvageVolumeInput) (*createdVolume, error) {
	return newVolume(disks(ctx).Salvage(ctx, &disk.SalvageDiskRequest{
		Project: callerFrom(ctx).Project(), Source: in.Name, Node: in.Body.Node, Takeover: in.Body.Takeover, Disk: in.Body.Name,
	}))
}

// VolumePage is a page of a list.
type VolumePage struct {
	Volumes    []Volume `json:"volumes" doc:"Volumes, in the order of their ids."`
	NextCursor string   `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listVolumes(ctx context.Context, in *ListInput) (*body[VolumePage], error) {
	all, cursor, err := listPage[disk.Disk](ctx, disk.KindDisk, in)
	if err != nil {
		return nil, err
	}
	out := VolumePage{Volumes: []Volume{}, NextCursor: cursor}
	for _, d := range all {
		out.Volumes = append(out.Volumes, volumeOf(d))
	}
	return &body[VolumePage]{out}, nil
}

func getVolume(ctx context.Context, in *VolumeInput) (*body[VolumeDetails], error) {
	d, err := findDisk(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	mounts, _, err := entity.List[disk.DiskMount](ctx, remote.New(callerFrom(ctx).Client), entity.Where(disk.DiskMountAttrDisk, d.ID))
	if err != nil {
		return nil, err
	}
	out := VolumeDetails{Volume: volumeOf(d), Mounts: []VolumeMount{}}
	for _, m := range mounts {
		out.Mounts = append(out.Mounts, VolumeMount{Container: string(m.Spec.Sandbox), Path: m.Spec.Path, ReadOnly: m.Spec.ReadOnly})
	}
	return &body[VolumeDetails]{out}, nil
}

func deleteVolume(ctx context.Context, in *VolumeInput) (*struct{}, error) {
	return nil, disks(ctx).Delete(ctx, &disk.DiskRequest{Project: callerFrom(ctx).Project(), Disk: in.Name})
}

type resizeVolumeInput struct {
	VolumeInput
	Body struct {
		SizeBytes int64 `json:"size_bytes" minimum:"16777216" maximum:"17592186044416" multipleOf:"4096" doc:"New size, not less than the present one." example:"2147483648"`
	}
}

func resizeVolume(ctx context.Context, in *resizeVolumeInput) (*body[Volume], error) {
	v, err := newVolume(disks(ctx).Resize(ctx, &disk.ResizeDiskRequest{
		Project: callerFrom(ctx).Project(), Disk: in.Name, SizeBytes: in.Body.SizeBytes,
	}))
	if err != nil {
		return nil, err
	}
	return &body[Volume]{v.Body}, nil
}

type createVolumeSnapshotInput struct {
	VolumeInput
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name among those of the volume." example:"before"`
	}
}

func createVolumeSnapshot(ctx context.Context, in *createVolumeSnapshotInput) (*body[VolumeSnapshot], error) {
	resp, err := disks(ctx).Snapshot(ctx, &disk.SnapshotDiskRequest{Project: callerFrom(ctx).Project(), Disk: in.Name, Snapshot: in.Body.Name})
	if err != nil {
		return nil, err
	}
	s, err := entity.Decode[disk.DiskSnapshot](&resp.Snapshot)
	if err != nil {
		return nil, err
	}
	return &body[VolumeSnapshot]{volumeSnapshotOf(s)}, nil
}

// VolumeSnapshotList is the snapshots of a volume.
type VolumeSnapshotList struct {
	Snapshots []VolumeSnapshot `json:"snapshots" doc:"Snapshots, in the order of their ids."`
}

func listVolumeSnapshots(ctx context.Context, in *VolumeInput) (*body[VolumeSnapshotList], error) {
	d, err := findDisk(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	all, _, err := entity.List[disk.DiskSnapshot](ctx, remote.New(callerFrom(ctx).Client), entity.Where(disk.DiskSnapshotAttrDisk, d.ID))
	if err != nil {
		return nil, err
	}
	out := VolumeSnapshotList{Snapshots: []VolumeSnapshot{}}
	for _, s := range all {
		out.Snapshots = append(out.Snapshots, volumeSnapshotOf(s))
	}
	return &body[VolumeSnapshotList]{out}, nil
}

type volumeSnapshotInput struct {
	VolumeInput
	Snapshot string `path:"snapshot" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the snapshot." example:"before"`
}

func deleteVolumeSnapshot(ctx context.Context, in *volumeSnapshotInput) (*struct{}, error) {
	return nil, disks(ctx).DeleteSnapshot(ctx, &disk.SnapshotDiskRequest{Project: callerFrom(ctx).Project(), Disk: in.Name, Snapshot: in.Snapshot})
}
