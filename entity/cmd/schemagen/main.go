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

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	check := flag.Bool("check", false, "write nothing; fail if a file is out of date")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "schemagen:", err)
		os.Exit(1)
	}
}
