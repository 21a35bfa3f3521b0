package s3_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/s3"
)

// noCredentials takes away everything that the SDK's chain may find on this machine.
func noCredentials(t *testing.T) {
	for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ROLE_ARN",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Setenv(v, "")
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// services answers like the STS, the service of a container and that of an instance, each with keys of its own.
func services(t *testing.T) string {
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("Action") != "AssumeRoleWithWebIdentity" || r.FormValue("WebIdentityToken") != "token" || r.FormValue("RoleArn") != "arn:aws:iam::1:role/disks" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>`+
			`<AccessKeyId>AKWEB</AccessKeyId><SecretAccessKey>hush</SecretAccessKey><SessionToken>session</SessionToken><Expiration>%s</Expiration>`+
			`</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, expires)
	})
	keys := func(id string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"Code":"Success","AccessKeyId":%q,"SecretAccessKey":"hush","Token":"session","Expiration":%q}`, id, expires)
		}
	}
	mux.HandleFunc("GET /container", keys("AKCONTAINER"))
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "600")
		fmt.Fprint(w, "token")
	})
	mux.HandleFunc("GET /latest/meta-data/iam/security-credentials/{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "role") })
	mux.HandleFunc("GET /latest/meta-data/iam/security-credentials/role", keys("AKINSTANCE"))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// TestCredentialsOfTheChain opens a store without credentials=FILE: its requests are signed with what the SDK's chain
// finds, the first before the last.
func TestCredentialsOfTheChain(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, profile string
		env           map[string]string
		want          string // access key and region
	}{
		{"environment", "", map[string]string{"AWS_ACCESS_KEY_ID": "AKENV", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_CONFIG_FILE": file("broken", "[")}, "AKENV us-east-1"},
		{"default profile", "", map[string]string{"AWS_SHARED_CREDENTIALS_FILE": file("keys", "[default]\naws_access_key_id = AKFILE\naws_secret_access_key = hush\n"),
			"AWS_CONFIG_FILE": file("config", "[default]\nregion = eu-9\n[profile disks]\nregion = eu-8\naws_access_key_id = AKDISKS\naws_secret_access_key = hush\n")}, "AKFILE eu-9"},
		{"named profile", "disks", map[string]string{"AWS_CONFIG_FILE": filepath.Join(dir, "config"), "AWS_ACCESS_KEY_ID": "AKENV", "AWS_SECRET_ACCESS_KEY": "hush"}, "AKDISKS eu-8"},
		{"web identity", "", map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::1:role/disks", "AWS_WEB_IDENTITY_TOKEN_FILE": file("token", "token"), "AWS_ENDPOINT_URL_STS": "services",
			"AWS_REGION": "eu-7"}, "AKWEB eu-7"},
		{"container", "", map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "services/container"}, "AKCONTAINER us-east-1"},
		{"instance", "", map[string]string{"AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "services"}, "AKINSTANCE us-east-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			noCredentials(t)
			url := services(t)
			for k, v := range c.env {
				t.Setenv(k, strings.Replace(v, "services", url, 1))
			}
			f, _ := newFake(t)
			var mu sync.Mutex
			used := map[string]int{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, credential, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
				if parts := strings.Split(credential, "/"); len(parts) > 2 {
					mu.Lock()
					used[parts[0]+" "+parts[2]]++
					mu.Unlock()
				}
				f.ServeHTTP(w, r)
			}))
			defer server.Close()
			_, err := s3.Open(t.Context(), s3.Config{Bucket: "b", Endpoint: server.URL, PathStyle: true, Profile: c.profile})
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(used) != 1 || used[c.want] == 0 {
				t.Errorf("signed by %v, not %s", used, c.want)
			}
		})
	}
}
