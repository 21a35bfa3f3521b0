package buildkit

import (
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"miren.dev/runtime/pkg/buildlog"
)

// masked is what stands in a log for the value of a secret.
const masked = "****"

// minMasked is the length, in bytes, of the shortest text that is taken out of a log: shorter ones are parts of words.
const minMasked = 4

// mask takes the values of secrets out of text.
type mask struct{ replacer *strings.Replacer }

// newMask returns a mask of values: as they are, line by line, and the password of an address. A program may still
// print a value in another form, such as base64.
func newMask(secrets map[string]string) mask {
	var texts []string
	add := func(s string) {
		s = strings.TrimSpace(s)
		if len(s) < minMasked {
			return
		}
		// Addresses have it escaped; a log has no bytes that are not UTF-8.
		texts = append(texts, s, url.QueryEscape(s), url.PathEscape(s))
		if !utf8.ValidString(s) {
			texts = append(texts, strings.ToValidUTF8(s, "�"))
		}
	}
	for _, value := range secrets {
		for line := range strings.Lines(value) {
			add(line)
		}
		if u, err := url.Parse(strings.TrimSpace(value)); err == nil && u.User != nil {
			password, _ := u.User.Password()
			add(password)
		}
	}
	// The longest first: one value may begin with another.
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, t := range slices.Compact(texts) {
		pairs = append(pairs, t, masked)
	}
	return mask{strings.NewReplacer(pairs...)}
}

func (m mask) text(s string) string { return m.replacer.Replace(s) }

// event returns an event with masked text, for the log.
func (m mask) event(e buildlog.Event) buildlog.Event {
	e.Text, e.Name = m.text(e.Text), m.text(e.Name)
	return e
}
