package disks

import "testing"

func TestPermits(t *testing.T) {
	s := &Service{Stores: []string{"/srv/copies/", "s3://backups/prod?endpoint=https://s3.example.com"}}
	for store, want := range map[string]bool{
		"/srv/copies": true, "/srv/copies/shop": true, "/srv/copies-of-others": false, "/srv": false, "/": false, "": false, "/srv/copies/../../etc": false,
		"file:///srv/copies": false,
		"s3://backups/prod?endpoint=https://s3.example.com":      true,
		"s3://backups/prod/shop?endpoint=https://s3.example.com": true,
		"s3://backups/prod?endpoint=https://example.org":         false, // it would get the server's credentials
		"s3://backups/prod": false,
		"s3://backups/production?endpoint=https://s3.example.com": false,
	} {
		if s.Permits(store) != want {
			t.Errorf("%q: permitted is %v", store, !want)
		}
	}
	if new(Service).Permits("/srv") {
		t.Error("without stores one is permitted")
	}
}
