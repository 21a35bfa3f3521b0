package stack

import "testing"

func TestStaticPlans(t *testing.T) {
	checkPlans(t, "static", []planTest{
		{"static", "-- index.html --\n", []string{"FROM runtime/static", " ./ /site/"}, []string{"index.html"}, "web:8080:"},
		{"static in a folder", "-- public/index.html --\n", []string{" public/ /site/"}, nil, "web:8080:"},
		{"static, said", "-- www/x.html --\n-- app.toml --\n[build]\nstack = \"static\"\noutput = \"www\"\n[services.web]\nport = 80\n", []string{" www/ /site/"}, nil, "web:80:"},
		{"Dockerfile overruled", "-- Dockerfile --\nFROM debian\n-- index.html --\n-- app.toml --\n[build]\nstack = \"static\"\n", nil, []string{"the stack static was asked for"}, "web:8080:"},
		{"static, redirects of a single-page app", "-- index.html --\n-- _redirects --\n/*  /index.html  200\n", []string{"ENV STATIC_FALLBACK=/index.html\n"}, nil, ""},
		{"static, fallback", "-- index.html --\n-- app.toml --\n[build]\nfallback = \"app.html\"\n", []string{"ENV STATIC_FALLBACK=/app.html\n"}, nil, ""},
		{"static, pages", "-- index.html --\n", []string{"!FALLBACK"}, nil, ""},
	})
}
