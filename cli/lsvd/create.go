package lsvd

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd/catalog"
)

type createOptions struct {
	base
	size    string
	encrypt bool
	keyFile string
}

func newCreate(e *command.Env) *cobra.Command {
	o := &createOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "create VOLUME --size SIZE",
		Short:   "Create an empty volume",
		Example: "  r lsvd create data --size 10G\n  r lsvd create secret --size 1T --encrypt --key-file secret.key",
		Long: `Creates an empty volume, which takes no space until data is written. The size is in bytes, or with a unit: G and GiB are 2^30.

--encrypt encrypts the data in the store (AES-256-GCM) with a random data key that the key in --key-file opens; it creates
the file if it does not exist. Without the key the volume cannot be read. Maps and manifests are authenticated, not
encrypted; the local log is plain. r lsvd rotate-key changes the key.`,
		Args: command.Args(1, 1, "VOLUME"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVarP(&o.size, "size", "s", "", "size of the disk, as 10G")
	cmd.Flags().BoolVar(&o.encrypt, "encrypt", false, "encrypt the data in the store; needs --key-file")
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "file with the key: 32 bytes or 64 hexadecimal digits")
	return cmd
}

// created is a new volume as JSON.
type created struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	SizeBytes int64  `json:"size_bytes"`
	Store     string `json:"store"`
	Encrypted bool   `json:"encrypted"`
	KeyMade   bool   `json:"key_made,omitempty"`
	Origin    string `json:"origin,omitempty"`
}

func (o *createOptions) run(ctx context.Context, volume string) error {
	if o.size == "" {
		return exit.Usagef("--size is missing: give the size of the disk, as 10G")
	}
	size, err := sizeArg(o.size)
	if err != nil {
		return err
	}
	if o.encrypt != (o.keyFile != "") {
		return exit.Usagef("--encrypt and --key-file must be given together")
	}
	st, url, err := o.open(ctx)
	if err != nil {
		return err
	}
	key, made, err := o.key(o.keyFile)
	if err != nil {
		return err
	}
	id, err := catalog.Create(ctx, st, volume, size, key)
	if err != nil {
		return err
	}
	if made {
		o.Notef("wrote a new key to %s: keep a copy, without it the volume cannot be read\n", o.keyFile)
	}
	if o.JSON {
		return o.PrintJSON(created{ID: id.String(), Name: volume, SizeBytes: size, Store: url, Encrypted: key != nil, KeyMade: made})
	}
	o.Printf("%s created %s (%s), %s in %s\n", o.Paint(console.Green, "✓"), volume, id, bytesCell(size), url)
	return nil
}
