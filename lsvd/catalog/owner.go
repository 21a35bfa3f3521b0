package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Owner says who opened a volume. It helps people find a disk that is open
// elsewhere; what decides is the claim in the manifest.
type Owner struct {
	Version int       `json:"version"` // of this format: 1
	Host    string    `json:"host"`    // name of the machine
	State   string    `json:"state"`   // identity of the state directory with the log
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
	Claim   string    `json:"claim"` // Device.Owner of its claim
}

func ownerKey(id lsvd.ID) string { return "owners/" + id.String() }

// SetOwner records who has opened the volume.
func SetOwner(ctx context.Context, st store.Store, id lsvd.ID, o Owner) error {
	o.Version = 1
	b, err := json.Marshal(o)
	if err != nil {
		return errs.New(errs.Internal, "encode owner: %w", err)
	}
	_, err = st.Create(ctx, ownerKey(id), b)
	for try := 0; errs.Is(err, errs.AlreadyExists) && try < 3; try++ {
		var v store.Version
		if _, v, err = st.Get(ctx, ownerKey(id)); err == nil {
			if _, err = st.Replace(ctx, ownerKey(id), b, v); errs.Is(err, errs.Conflict) {
				err = errs.New(errs.AlreadyExists, "owner of %s changes", id)
			}
		}
	}
	return err
}

// OwnerOf returns who has the volume open, or had when its machine died. It
// returns nil if it is closed, or no owner was recorded: it is only advice.
func OwnerOf(ctx context.Context, st store.Store, v *Volume) *Owner {
	if v.Clean {
		return nil
	}
	b, _, err := st.Get(ctx, ownerKey(v.ID))
	if err != nil {
		return nil
	}
	var o Owner
	if json.Unmarshal(b, &o) != nil || o.Version != 1 || o.Claim != v.Owner {
		return nil
	}
	return &o
}

func (o *Owner) String() string {
	return fmt.Sprintf("by process %d on %s since %s", o.PID, o.Host, o.Since.UTC().Format(time.RFC3339))
}

// by is " by process ..." if the owner of the volume is known.
func by(ctx context.Context, st store.Store, v *Volume) string {
	if o := OwnerOf(ctx, st, v); o != nil {
		return " " + o.String()
	}
	return ""
}
