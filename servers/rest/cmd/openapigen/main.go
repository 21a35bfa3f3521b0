// Command openapigen writes sdk/openapi.json, the OpenAPI document of the REST
// face, from which the SDKs are generated.
//
//	go run ./servers/rest/cmd/openapigen [-check] [-root DIR]
package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/servers/rest"
)

func main() {
	gogen.Main("openapigen", func(root string) ([]gogen.Output, error) {
		version, err := os.ReadFile(filepath.Join(root, "VERSION"))
		if err != nil {
			return nil, err
		}
		doc := rest.New(nil, http.NewServeMux()).OpenAPI()
		doc.Info.Version = strings.TrimSpace(string(version))
		text, err := doc.MarshalJSON()
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		if err := json.Indent(&b, text, "", "  "); err != nil {
			return nil, err
		}
		b.WriteByte('\n')
		return []gogen.Output{{Path: "sdk/openapi.json", Data: b.Bytes()}}, nil
	})
}
