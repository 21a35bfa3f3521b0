package ingress

import (
	"encoding/json"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// page is an answer that the ingress itself gives.
type page struct {
	Status     int    `json:"status"`
	Code       string `json:"code"` // stable: programs may match it
	Title      string `json:"error"`
	Detail     string `json:"detail"`
	Hint       string `json:"hint,omitempty"`
	RequestID  string `json:"request_id,omitempty"`
	retryAfter int    // seconds
	challenge  bool   // ask for a token
	asks       bool   // ask for a user and a password
	own        string // the route's HTML for people
	closes     bool   // end the connection, on which the request goes on
}

var pageHTML = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Status}} {{.Title}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em;color:#222;background:#fff}
small{color:#777}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}</style></head>
<body><h1>{{.Title}}</h1><p>{{.Detail}}</p>{{if .Hint}}<p>{{.Hint}}</p>{{end}}<p><small>{{.Status}} {{.Code}}{{if .RequestID}} · request {{.RequestID}}{{end}}</small></p></body></html>
`))

// write sends the page: as JSON or HTML if the client asks for one of these,
// otherwise as plain text.
func (p *page) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	clear(h)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.RequestID != "" {
		h.Set("X-Request-Id", p.RequestID)
	}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.closes && r.ProtoMajor == 1 {
		h.Set("Connection", "close")
	}
	if p.challenge {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if p.asks {
		h.Set("WWW-Authenticate", `Basic realm="restricted", charset="UTF-8"`)
	}
	accept := strings.Join(r.Header["Accept"], ",")
	var body strings.Builder
	switch {
	case strings.Contains(accept, "json"):
		h.Set("Content-Type", "application/json")
		_ = json.NewEncoder(&body).Encode(p)
	case strings.Contains(accept, "text/html"):
		h.Set("Content-Type", "text/html; charset=utf-8")
		if p.own != "" {
			body.WriteString(p.own)
		} else {
			_ = pageHTML.Execute(&body, p)
		}
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body.WriteString(p.Title + "\n\n" + p.Detail + "\n")
		if p.Hint != "" {
			body.WriteString(p.Hint + "\n")
		}
	}
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(body.String()))
	}
}

func malformed() *page {
	return &page{Status: http.StatusBadRequest, Code: "malformed", Title: "The request is malformed",
		Detail: "Its method, path or host has characters that HTTP does not permit there, or it names two hosts."}
}

func unknownHost(host string) *page {
	return &page{Status: http.StatusNotFound, Code: "unknown_host", Title: "There is nothing at this address",
		Detail: "No app answers at " + strconv.Quote(host) + " and this path.",
		Hint:   "If the app is yours: `r route list` shows which addresses lead to which app."}
}

func notDeployed(app string) *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "not_deployed", Title: "This app has not been deployed yet",
		Detail: "The app " + strconv.Quote(app) + " exists, but no version of it serves.",
		Hint:   "If the app is yours: `r deploy` in its source folder puts it online.", retryAfter: 10}
}

// noService is the page for a service that no version of the app that serves has, or that takes no requests.
func noService(app, service string) *page {
	return &page{Status: http.StatusNotFound, Code: "no_service", Title: "This app has no such service",
		Detail: "The app " + strconv.Quote(app) + " has no service " + strconv.Quote(service) + " that takes requests.",
		Hint:   "If the app is yours: `r app status` shows its services. A service takes requests if it has a port in app.toml."}
}

// notReady is the page for a request that waited for too long. away reports that the server, which wakes apps, cannot be
// reached.
func notReady(app, service, waited string, away bool) *page {
	p := &page{Status: http.StatusServiceUnavailable, Code: "not_ready", Title: "This app is not ready",
		Detail: "No instance of the service " + strconv.Quote(service) + " of " + strconv.Quote(app) + " became ready within " + waited + ".",
		Hint:   "Try again in a moment. If the app is yours: `r app status` and `r app logs` tell what it is doing.", retryAfter: 5}
	if away {
		p.Code, p.Hint = "not_woken", "Try again in a moment. If the server is yours: `r server status` tells whether it runs."
		p.Detail += " The server, which starts instances and wakes apps that sleep, does not answer."
	}
	return p
}

// onOtherNode is the page for an app whose instances are on other nodes. There is no route to their
// networks, and their addresses may be those of other sandboxes here.
func onOtherNode(app, service string) *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "on_other_node", Title: "This app does not run on this machine",
		Detail: "The instances of the service " + strconv.Quote(service) + " of " + strconv.Quote(app) + " run on other machines. This one sends requests to its own only.",
		Hint:   "If the server is yours: send requests to the machine that runs the app, or keep apps on one machine (`r node cordon` the others).", retryAfter: 5}
}

func tooManyWait(app string) *page {
	return &page{Status: http.StatusServiceUnavailable, Code: "too_many_waiting", Title: "This app is not ready",
		Detail: "No instance of " + strconv.Quote(app) + " is ready, and too many requests are waiting for one already.",
		Hint:   "Try again in a moment.", retryAfter: 5}
}

func badAnswer(app string) *page {
	return &page{Status: http.StatusBadGateway, Code: "bad_answer", Title: "This app did not answer properly",
		Detail: "The connection to " + strconv.Quote(app) + " broke, or what it sent is not HTTP.",
		Hint:   "If the app is yours: `r app logs` may tell why."}
}

func tooSlow(app string) *page {
	return &page{Status: http.StatusGatewayTimeout, Code: "timeout", Title: "This app took too long",
		Detail: strconv.Quote(app) + " accepted the request and did not begin to answer in time."}
}

func tooLarge(limit int64) *page {
	return &page{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Title: "The request is too large",
		Detail: "Its body is larger than " + strconv.FormatInt(limit, 10) + " bytes."}
}

func tooSlowUpload(limit time.Duration) *page {
	return &page{Status: http.StatusRequestTimeout, Code: "body_timeout", Title: "The request took too long",
		Detail: "No part of its body arrived for " + limit.String() + ".", closes: true}
}
