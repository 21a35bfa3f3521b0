package lsvd

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

type rotateKeyOptions struct {
	base
	keyFile, newKeyFile string
}

func newRotateKey(e *command.Env) *cobra.Command {
	o := &rotateKeyOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "rotate-key VOLUME --key-file OLD --new-key-file NEW",
		Short:   "Change the key of an encrypted volume",
		Example: "  r lsvd rotate-key secret --key-file secret.key --new-key-file secret-2.key",
		Long: `Makes the key in --new-key-file, which it creates if the file does not exist, the key of an encrypted volume and its
snapshots, instead of that in --key-file. It writes no data again: both keys open the same data key, of which the store
keeps one small object. The volume may be attached. A command that was interrupted may be repeated: one of the two keys
opens the volume at any time.

The disk of an attached volume stays open, and the disk daemon opens it with the new file from then on, also if it was
killed meanwhile. If no daemon runs, the next one opens attached disks with the earlier file: put the new key
there. Clones, and copies in other stores, keep their key.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "file with the present key")
	cmd.Flags().StringVar(&o.newKeyFile, "new-key-file", "", "file with the new key; created if it does not exist")
	return cmd
}

func (o *rotateKeyOptions) run(ctx context.Context, arg string) error {
	volume, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	if o.keyFile == "" || o.newKeyFile == "" {
		return exit.Usagef("--key-file and --new-key-file must both be given")
	}
	st, _, v, err := o.find(ctx, volume)
	if err != nil {
		return err
	}
	old, err := host.ReadKey(o.keyFile)
	if err != nil {
		return err
	}
	if err := host.CheckKey(v, old); err != nil {
		return err
	}
	key, made, err := o.key(o.newKeyFile)
	if err != nil {
		return err
	}
	if made {
		o.Notef("wrote a new key to %s: keep a copy, without it the volume cannot be read\n", o.newKeyFile)
	}
	c, d, err := o.attached(ctx, v)
	if err != nil && !errs.Is(err, errs.PermissionDenied) {
		o.Notef("whether the disk daemon has the volume attached could not be found out: %v\n", err)
	}
	if c != nil {
		defer c.Close()
		if err = o.rotateAttached(ctx, c, v); err == nil {
			o.Notef("the volume is attached, and the disk daemon opens it with %s from now on\n", o.newKeyFile)
		}
	} else {
		err = lsvd.RotateKey(ctx, st, v.ID, old, key)
	}
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"id": v.ID.String(), "name": v.Name, "key_made": made, "attached": d != nil})
	}
	o.Printf("%s the key of %s is the one in %s now\n", o.Paint(console.Green, "✓"), v.Label(), o.newKeyFile)
	return nil
}

// rotateAttached has the daemon rotate the key of a volume that it has attached.
func (o *rotateKeyOptions) rotateAttached(ctx context.Context, c *client, v *catalog.Volume) error {
	req := &api.RotateKeyRequest{Volume: v.ID.String()}
	var err error
	if req.KeyFile, err = filepath.Abs(o.keyFile); err == nil {
		req.NewKeyFile, err = filepath.Abs(o.newKeyFile)
	}
	if err != nil {
		return errs.Wrap(err, "key file")
	}
	return c.RotateKey(ctx, req)
}
