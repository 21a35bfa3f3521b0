// Package sdk has the OpenAPI document of the REST face, from which the SDKs
// below this folder are generated.
package sdk

import _ "embed" // the document

// OpenAPI is the OpenAPI 3.1 document of the REST face, as JSON.
//
//go:embed openapi.json
var OpenAPI []byte
