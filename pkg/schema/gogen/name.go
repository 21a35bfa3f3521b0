package gogen

import "strings"

// initialisms are the words that Go writes in capitals.
var initialisms = map[string]string{
	"api": "API", "ca": "CA", "cidr": "CIDR", "cpu": "CPU", "cpus": "CPUs", "dns": "DNS", "eof": "EOF",
	"gid": "GID", "html": "HTML", "http": "HTTP", "https": "HTTPS", "id": "ID", "ids": "IDs", "io": "IO",
	"ip": "IP", "ips": "IPs", "json": "JSON", "mcp": "MCP", "oci": "OCI", "oom": "OOM", "os": "OS",
	"pid": "PID", "pids": "PIDs", "pty": "PTY", "rest": "REST", "rpc": "RPC", "sql": "SQL", "ssh": "SSH",
	"tcp": "TCP", "tls": "TLS", "ttl": "TTL", "tty": "TTY", "udp": "UDP", "uid": "UID", "uri": "URI",
	"url": "URL", "urls": "URLs", "uuid": "UUID", "vm": "VM", "xml": "XML", "yaml": "YAML",
}

// GoName turns a name of the type language into a Go name:
// GoName("cpu_millis") == "CPUMillis".
func GoName(s string) string {
	var sb strings.Builder
	for w := range strings.SplitSeq(s, "_") {
		switch up, ok := initialisms[w]; {
		case w == "":
		case ok:
			sb.WriteString(up)
		default:
			sb.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return sb.String()
}
