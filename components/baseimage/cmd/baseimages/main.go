// Command baseimages makes base images before the tests that need them: the race
// detector of tests makes compressing them take many times as long.
//
//	baseimages [-dir folder] [-bin folder] [-sandboxes] name...
//
// Names are image names of Dockerfiles. Images that do not depend on each other are made at the same time, as many as
// there are processors. Their names are the output.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/pkg/errs"
)

func main() {
	dir := flag.String("dir", baseimage.DefaultDir, "folder of the images")
	bin := flag.String("bin", "bin", "folder of the toolchain, with static-server")
	sandboxes := flag.Bool("sandboxes", false, "make all images for sandboxes too")
	flag.Parse()
	names := flag.Args()
	if *sandboxes {
		names = append(names, baseimage.SandboxImages()...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *bin, names); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if hint := errs.HintOf(err); hint != "" {
			fmt.Fprintln(os.Stderr, hint)
		}
		os.Exit(1)
	}
	for _, name := range names {
		fmt.Println(name)
	}
}

func run(ctx context.Context, dir, bin string, names []string) error {
	s := baseimage.New(baseimage.Config{
		Dir: dir, BinDir: bin, Registry: baseimage.RegistryNever, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.NumCPU()))
	for _, name := range names {
		g.Go(func() error {
			ref, err := baseimage.Lookup(name)
			if err != nil {
				return err
			}
			_, err = s.Ensure(ctx, ref, func(line string) { fmt.Fprintln(os.Stderr, line) })
			return err
		})
	}
	return g.Wait()
}
