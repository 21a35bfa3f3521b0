// Command schemagen generates code and documentation from api/*/schema.yml:
//
//	go run ./entity/cmd/schemagen -root . [-check]
//
// For every domain it writes api/<domain>/schema.gen.go and schema.lock.yml
// (which numbers the fields), and for all of them together api/id/id.gen.go,
// docs/reference/entities.schema.json and docs/reference/entities.md. With
// -check it writes nothing, lists the files that are out of date and exits
// with status 1 if there are any.
package main

import "miren.dev/runtime/pkg/schema/gogen"

func main() { gogen.Main(name, generate) }
