package rest

import (
	"context"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/pkg/errs"
)

// VolumeSchedule says when snapshots of a volume are taken, and which of them are kept.
type VolumeSchedule struct {
	EverySeconds   *int64 `json:"every_seconds,omitempty" minimum:"60" maximum:"3153600000" doc:"Time between snapshots."`
	Cron           string `json:"cron,omitempty" maxLength:"255" doc:"Times of snapshots as cron writes them, instead of every_seconds." example:"30 3 * * *"`
	TimeZone       string `json:"time_zone,omitempty" maxLength:"63" doc:"Time zone of cron; absent: UTC." example:"Europe/Berlin"`
	Keep           *int64 `json:"keep,omitempty" minimum:"1" maximum:"1000" doc:"Snapshots that are kept. Absent: as before, or with keep_for_seconds 1000."`
	KeepForSeconds *int64 `json:"keep_for_seconds,omitempty" minimum:"60" maximum:"3153600000" doc:"Age from which snapshots are deleted, except the newest. Absent: as before, or with keep any."`
}

// volumeScheduleOf returns the schedule of a disk, nil if it has none.
func volumeScheduleOf(x *disk.DiskSpec) *VolumeSchedule {
	if x.SnapshotEvery == nil && x.SnapshotSchedule == "" {
		return nil
	}
	return &VolumeSchedule{
		EverySeconds: inSeconds(x.SnapshotEvery), Cron: x.SnapshotSchedule, TimeZone: x.SnapshotTimeZone, Keep: &x.SnapshotKeep, KeepForSeconds: inSeconds(x.SnapshotKeepFor),
	}
}

type scheduleVolumeInput struct {
	VolumeInput
	Body VolumeSchedule
}

// scheduleVolume replaces the schedule of a volume. Whether its snapshots are
// copied to another store stays as it is.
func scheduleVolume(ctx context.Context, in *scheduleVolumeInput) (*body[Volume], error) {
	if (in.Body.EverySeconds == nil) == (in.Body.Cron == "") {
		return nil, errs.New(errs.InvalidArgument, "state either every_seconds or cron").WithHint("DELETE of the schedule takes no more snapshots")
	}
	req := &disk.ScheduleDiskRequest{
		Disk: in.Name, Every: seconds(in.Body.EverySeconds), Times: in.Body.Cron, TimeZone: in.Body.TimeZone,
		Keep: in.Body.Keep, KeepFor: seconds(in.Body.KeepForSeconds),
	}
	v, err := setSchedule(ctx, req)
	if err != nil {
		return nil, err
	}
	return &body[Volume]{v.Body}, nil
}

func deleteVolumeSchedule(ctx context.Context, in *VolumeInput) (*struct{}, error) {
	_, err := setSchedule(ctx, &disk.ScheduleDiskRequest{Disk: in.Name})
	return nil, err
}

func setSchedule(ctx context.Context, req *disk.ScheduleDiskRequest) (*createdVolume, error) {
	req.Project = callerFrom(ctx).Project()
	if err := req.Validate(); err != nil {
		return nil, err
	}
	return newVolume(disks(ctx).Schedule(ctx, req))
}
