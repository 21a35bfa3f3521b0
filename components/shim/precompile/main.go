//go:build precompile

// Command precompile writes the seccomp programs of runsc's sentry and gofer as Go code into a copy of gVisor's
// module, so that runsc does not compile them anew for every sandbox (some 15 ms each).
//
//	precompile DIR    DIR: the copy, which it is built with
//
// hack/toolchain/runsc/build.sh makes the copy, in which KeepPrecompiled chooses the options that our sandboxes use:
// systrap, the sentry's own network stack, and no devices.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentry "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "precompile:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	sentry.KeepPrecompiled = func(o sentry.Options) bool {
		return strings.Contains(o.Platform.ConfigKey(), "systrap") &&
			!o.HostNetwork && !o.NVProxy && !o.TPUProxy && !o.RDMAProxy
	}
	gofer.KeepPrecompiled = func(o gofer.Options) bool { return o.UDSOpenEnabled && !o.UDSCreateEnabled && !o.CgoEnabled }
	for _, f := range []struct {
		pkg      string
		programs func() ([]precompiledseccomp.Program, error)
	}{
		{"runsc/boot/filter", sentry.PrecompiledPrograms},
		{"runsc/fsgofer/filter", gofer.PrecompiledPrograms},
	} {
		programs, err := f.programs()
		if err != nil {
			return fmt.Errorf("%s: %w", f.pkg, err)
		}
		if len(programs) == 0 {
			return fmt.Errorf("%s: no option is kept", f.pkg)
		}
		if err := write(filepath.Join(dir, f.pkg), programs); err != nil {
			return err
		}
		fmt.Printf("%s: %d programs\n", f.pkg, len(programs))
	}
	return nil
}

// Marks in filter_precompiled.go.
const (
	disabled = "const PrecompilationDisabledAtBuildTime = true"
	enabled  = "const PrecompilationDisabledAtBuildTime = false"
	empty    = "\tprograms := make(map[string]precompiledseccomp.Program)\n"
)

func write(pkg string, programs []precompiledseccomp.Program) error {
	sort.Slice(programs, func(i, j int) bool { return programs[i].Name < programs[j].Name })
	path := filepath.Join(pkg, "filter_precompiled.go")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	code := string(b)
	if strings.Count(code, disabled) != 1 || strings.Count(code, empty) != 1 {
		return fmt.Errorf("%s is not as expected: this version of gVisor needs another way", path)
	}
	var table strings.Builder
	for _, p := range programs {
		table.WriteString(p.Registration("\t", "precompiledseccomp", "programs"))
	}
	code = strings.Replace(code, disabled, enabled, 1)
	code = strings.Replace(code, empty, empty+table.String(), 1)
	return os.WriteFile(path, []byte(code), 0o644)
}
