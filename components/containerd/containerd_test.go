package containerd_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

func config(t *testing.T) containerd.Config {
	t.Helper()
	need.Root(t)
	bin := checkout.Toolchain(t, "containerd")
	return containerd.Config{Instance: leakcheck.Installation(t), BinDir: bin}
}

func start(t *testing.T, c containerd.Config) *containerd.Daemon {
	t.Helper()
	d := containerd.New(c)
	t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func pid(t *testing.T, c containerd.Config) int {
	t.Helper()
	p, err := proc.Find(c.Instance.Socket("containerd", "containerd.pid"))
	if err != nil || p == nil {
		t.Fatalf("containerd does not run: %v", err)
	}
	return p.PID()
}

func TestDaemonIsAdoptedAndRestarted(t *testing.T) {
	c := config(t)
	first := start(t, c)
	old := pid(t, c)
	if err := first.Close(); err != nil { // the server ends
		t.Fatal(err)
	}
	second := start(t, c)
	if now := pid(t, c); now != old {
		t.Errorf("pid %d, was %d: it was not adopted", now, old)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- second.Run(ctx) }()
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "it is started again", func() error {
		p, err := proc.Find(c.Instance.Socket("containerd", "containerd.pid"))
		if err == nil && (p == nil || p.PID() == old) {
			err = fmt.Errorf("pid still %d", old)
		}
		return err
	})
	client, err := second.Client()
	if err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "it answers", func() error {
		_, err := client.Version(t.Context())
		return err
	})
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	pid(t, c) // it keeps running without the server
	for range 2 {
		if err := second.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestHeldImagesOutliveTheirNames(t *testing.T) {
	d := start(t, config(t))
	ctx := t.Context()
	images := containerd.NewImages(d)
	ref, err := images.Import(ctx, bytes.NewReader(executiontest.Image(t)), "app/web", map[string]string{"app": "web"})
	if err != nil {
		t.Fatal(err)
	}
	packed, err := images.Usage(ctx, ref)
	if err != nil || packed <= 0 {
		t.Errorf("Usage = %d, %v", packed, err)
	}
	image, err := images.Resolve(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := images.Usage(ctx, ref); err != nil || n <= packed {
		t.Errorf("Usage of the unpacked image = %d, of the packed one %d, %v", n, packed, err)
	}
	if _, err := images.Usage(ctx, "app/none"); !errs.Is(err, errs.NotFound) {
		t.Errorf("Usage of no image: %v", err)
	}
	if image.Ref != ref || image.ChainID == "" || len(image.Config.Entrypoint) != 1 || image.Size <= 0 {
		t.Errorf("image %+v", image)
	}
	second, err := images.Import(ctx, bytes.NewReader(executiontest.Image(t)), "app/other", nil)
	if err != nil || second != containerd.Canonical("app/other", image.Digest) {
		t.Errorf("the same image by another name: %s, %v", second, err)
	}
	if list, err := images.List(ctx, map[string]string{"app": "web"}); err != nil || len(list) != 1 || list[0].Ref != ref {
		t.Errorf("List = %+v, %v", list, err)
	}
	if list, err := images.List(ctx, nil); err != nil || len(list) != 2 {
		t.Errorf("List of all = %+v, %v: the import left a name", list, err)
	}
	kept, err := images.Keep(ctx, ref, "snapshot-1")
	if err == nil {
		err = images.Delete(ctx, kept)
	}
	if got, again := images.Resolve(ctx, ref); err != nil || again != nil || got != image {
		t.Errorf("an image that lost one of its names is read anew: %+v, %v, %v", got, err, again)
	}
	for _, r := range []string{ref, "app/none@" + image.Digest.String()} {
		if err := images.Delete(ctx, r); err != nil {
			t.Error(err)
		}
	}
	collect(t, d)
	if got, err := images.Resolve(ctx, second); err != nil || got.Ref != second {
		t.Errorf("resolved by a name that it lost: %+v, %v", got, err)
	}
	again := containerd.NewImages(d)
	if got, err := again.Resolve(ctx, second); err != nil || got.ChainID != image.ChainID || got.Config.WorkingDir != image.Config.WorkingDir {
		t.Errorf("an image that has another name: %+v, %v", got, err)
	}
	if err := images.Delete(ctx, second); err != nil {
		t.Error(err)
	}
	collect(t, d)
	if got, err := containerd.NewImages(d).Resolve(ctx, second); !errs.Is(err, errs.NotFound) {
		t.Errorf("an image without a name: %+v, %v", got, err)
	}
	if _, err := images.Import(ctx, bytes.NewReader([]byte("no archive")), "bad", nil); err == nil {
		t.Error("garbage was imported")
	}
}

// TestExportedImageIsImportedElsewhere: an image gets the same reference in another
// image store, where it can be used.
func TestExportedImageIsImportedElsewhere(t *testing.T) {
	from, to := containerd.NewImages(start(t, config(t))), containerd.NewImages(start(t, config(t)))
	ctx := t.Context()
	ref, err := from.Import(ctx, bytes.NewReader(executiontest.Image(t)), "app/web", nil)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := from.Export(ctx, ref, &archive); err != nil {
		t.Fatal(err)
	}
	got, err := to.Import(ctx, &archive, "app/web", nil)
	if err != nil || got != ref {
		t.Fatalf("%s is imported as %s, %v", ref, got, err)
	}
	if image, err := to.Resolve(ctx, ref); err != nil || image.Ref != ref || len(image.Config.Entrypoint) != 1 {
		t.Errorf("%+v, %v", image, err)
	}
	if list, err := to.List(ctx, nil); err != nil || len(list) != 1 {
		t.Errorf("List = %+v, %v: the import left a name", list, err)
	}
	if err := from.Export(ctx, "app/none@"+ref[len("app/web@"):], &archive); !errs.Is(err, errs.NotFound) {
		t.Errorf("an image that does not exist: %v", err)
	}
}

// collect runs containerd's garbage collection, which runs before a synchronous delete returns.
func collect(t *testing.T, d *containerd.Daemon) {
	t.Helper()
	c, err := d.Client()
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.LeasesService().Create(t.Context(), leases.WithRandomID())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.LeasesService().Delete(t.Context(), l, leases.SynchronousDelete); err != nil {
		t.Fatal(err)
	}
}
