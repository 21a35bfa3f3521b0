// Package miren is a client of Miren Runtime: sandboxes for agents and untrusted
// code.
//
//	client, err := miren.NewClient(miren.Config{}) // MIREN_API_URL, MIREN_API_KEY
//	sandbox, err := client.Create(ctx, rest.CreateSession{Template: miren.Ptr("python")})
//	defer sandbox.End(ctx)
//	result, err := sandbox.Run(ctx, "python3", "-c", "print(6*7)")
//
// The package rest below it is generated from the server's OpenAPI document and
// has every operation; Client.REST calls them.
package miren
