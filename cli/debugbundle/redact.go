package debugbundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
)

// removed stands where a secret was.
const removed = "REMOVED"

// secrets are the texts that no file of a bundle has, each with what replaces it.
var secrets = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`), removed},
	{regexp.MustCompile(`AGE-SECRET-KEY-[0-9A-Z]+`), removed},
	{regexp.MustCompile(`\be2b_[0-9A-Za-z_-]{8,}`), removed},                                // keys of programs
	{regexp.MustCompile(`\brrt_[0-9A-Za-z_]+`), removed},                                    // tokens of runners
	{regexp.MustCompile(`\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*`), removed}, // JSON web tokens
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^/\s"']+@`), "${1}" + removed + "@"},  // user and password of URLs; a password may have an @
	{regexp.MustCompile(`(://[^\s"'?]*\?)[^\s"']+`), "${1}" + removed},                      // parameters of URLs
	{regexp.MustCompile(`(?i)\b((?:proxy-)?authorization["']?\s*[:=]\s*["']?)[^"'\r\n]+`), "${1}" + removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[0-9A-Za-z._~+/=-]{6,}`), "${1} " + removed},
	{regexp.MustCompile(`(?i)([a-z0-9_.-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[a-z0-9_]*["']?\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}&]+)`), "${1}" + removed},
}

// scrub removes what looks like a secret from a text.
func scrub(b []byte) []byte {
	for _, s := range secrets {
		b = s.re.ReplaceAll(b, []byte(s.to))
	}
	return b
}

// plain are the keys of an entity whose texts are kept: they name and date it, and
// say how it is. What users wrote is not among them.
var plain = map[string]bool{
	"kind": true, "id": true, "name": true, "project": true, "phase": true, "state": true, "health": true, "reason": true, "node": true,
	"created_at": true, "updated_at": true, "arch": true, "version": true,
}

var (
	idText   = regexp.MustCompile(`^[a-z]{1,16}-[a-z2-9]{16}$`)
	timeText = regexp.MustCompile(`^\d{4}-\d\d-\d\dT[0-9:.]+Z$`)
)

// redactEntity returns an entity in JSON with its ids, times, numbers and states.
// Every other text is replaced by its length, and keys of maps that users choose are
// numbered.
func redactEntity(b []byte) ([]byte, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(redact("", v))
}

var keyText = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// maps are the attributes whose keys users choose.
var maps = map[string]bool{"env": true, "labels": true, "annotations": true, "metadata": true, "tags": true, "headers": true, "secrets": true}

func redact(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out, n := map[string]any{}, 0
		for k, x := range v {
			if maps[key] || !keyText.MatchString(k) {
				n++
				out[fmt.Sprintf("key %d", n)] = redact("", x)
			} else {
				out[k] = redact(k, x)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = redact("", v[i])
		}
		return out
	case string:
		if plain[key] || idText.MatchString(v) || timeText.MatchString(v) {
			return v
		}
		return fmt.Sprintf("%d bytes", len(v))
	}
	return v
}
