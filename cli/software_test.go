package cli_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/sbom"
)

func (f fakeApps) Software(ctx context.Context, req *app.SoftwareRequest, st rpc.ServerStream[rpc.None, rpc.Bytes]) error {
	v, err := entity.Get[app.AppVersion](ctx, f.store, req.AppVersion)
	if err != nil {
		return err
	}
	return writeSoftware(st.Writer(), v.Name)
}

func (f fakeTemplates) Software(_ context.Context, req *sandbox.TemplateRequest, st rpc.ServerStream[rpc.None, rpc.Bytes]) error {
	return writeSoftware(st.Writer(), req.Template)
}

// writeSoftware lists the software of an image with a package of npm.
func writeSoftware(w io.Writer, name string) error {
	const file = `{"name": "@acme/kit", "version": "1.2.3"}`
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "app/node_modules/@acme/kit/package.json", Mode: 0o644, Size: int64(len(file))}); err != nil {
		return err
	}
	if _, err := io.WriteString(tw, file); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	var scan sbom.Scan
	if err := scan.Layer(&layer); err != nil {
		return err
	}
	return scan.Write(w, name, "1")
}

func TestSoftware(t *testing.T) {
	newFake(t).shop()
	for _, args := range [][]string{{"app", "sbom", "--app", "shop"}, {"app", "sbom", "v1", "--app", "shop"}, {"template", "sbom", "python"}} {
		out := ok(t, args...)
		contains(t, out, "npm", "@acme/kit", "1.2.3", "/app/node_modules/@acme/kit/package.json")
		contains(t, ok(t, append(args, "--json")...), `"bomFormat": "CycloneDX"`, `"pkg:npm/%40acme/kit@1.2.3"`)
	}
	if r := run(t, false, "", "app", "sbom", "v99", "--app", "shop"); r.code == 0 || !strings.Contains(r.err, "v99") {
		t.Errorf("%+v", r)
	}
}
