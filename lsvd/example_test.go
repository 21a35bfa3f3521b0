package lsvd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"miren.dev/runtime/lsvd"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/vfs"
)

// tempDir returns a new directory. The examples use it for the local log and
// as the object store.
func tempDir() string {
	dir, err := os.MkdirTemp("", "lsvd-example-")
	if err != nil {
		panic(err)
	}
	return dir
}

// A volume is created in an object store. Opening it needs a directory of this
// machine for its log. What was flushed is there after the next Open.
func Example() {
	ctx := context.Background()
	objects, logs := tempDir(), tempDir()
	defer os.RemoveAll(objects)
	defer os.RemoveAll(logs)
	st, err := dirstore.Open(objects)
	if err != nil {
		fmt.Println(err)
		return
	}
	fs, err := vfs.OpenDir(logs)
	if err != nil {
		fmt.Println(err)
		return
	}

	id := lsvd.NewID()
	if err := lsvd.Create(ctx, st, id, 1<<30, nil); err != nil {
		fmt.Println(err)
		return
	}
	disk, _, err := lsvd.Open(ctx, st, fs, id, lsvd.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := disk.WriteAt(ctx, bytes.Repeat([]byte("block 0 "), 512), 0, 0); err != nil {
		fmt.Println(err)
		return
	}
	if err := disk.Flush(ctx); err != nil { // now it survives a power loss
		fmt.Println(err)
		return
	}
	if err := disk.Close(ctx); err != nil { // now it is in the object store
		fmt.Println(err)
		return
	}

	disk, _, err = lsvd.Open(ctx, st, fs, id, lsvd.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer disk.Close(ctx)
	b := make([]byte, 7)
	if err := disk.ReadAt(ctx, b, 0); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s of %d bytes\n", b, disk.Size())

	// Output:
	// block 0 of 1073741824 bytes
}

// A snapshot keeps the disk as it is, a clone of it is a volume of its own.
// Neither copies data.
func ExampleDevice_Snapshot() {
	ctx := context.Background()
	objects, logs := tempDir(), tempDir()
	defer os.RemoveAll(objects)
	defer os.RemoveAll(logs)
	st, err := dirstore.Open(objects)
	if err != nil {
		fmt.Println(err)
		return
	}
	id, clone := lsvd.NewID(), lsvd.NewID()
	if err := lsvd.Create(ctx, st, id, 1<<20, nil); err != nil {
		fmt.Println(err)
		return
	}
	open := func(id lsvd.ID) *lsvd.Device {
		dir := filepath.Join(logs, id.String())
		if err := os.Mkdir(dir, 0o700); err != nil {
			panic(err)
		}
		fs, err := vfs.OpenDir(dir)
		if err != nil {
			panic(err)
		}
		disk, _, err := lsvd.Open(ctx, st, fs, id, lsvd.Options{})
		if err != nil {
			panic(err)
		}
		return disk
	}
	write := func(disk *lsvd.Device, text string) {
		block := make([]byte, 4096)
		copy(block, text)
		if err := disk.WriteAt(ctx, block, 0, 0); err != nil {
			panic(err)
		}
	}

	disk := open(id)
	defer disk.Close(ctx)
	write(disk, "monday ")
	if err := disk.Snapshot(ctx, "backup"); err != nil {
		fmt.Println(err)
		return
	}
	write(disk, "tuesday")
	if err := lsvd.Clone(ctx, st, id, "backup", clone, nil); err != nil {
		fmt.Println(err)
		return
	}

	copied := open(clone)
	defer copied.Close(ctx)
	for _, d := range []*lsvd.Device{disk, copied} {
		b := make([]byte, 7)
		if err := d.ReadAt(ctx, b, 0); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", b)
	}

	// Output:
	// tuesday
	// monday
}
