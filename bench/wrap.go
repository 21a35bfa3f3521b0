package main

import (
	"strings"
	"unicode/utf8"
)

// columns is where lines of the docs are wrapped, in characters.
const columns = 120

// wrap wraps the paragraphs and list items of a Markdown text, whose lines
// are separated by single line ends. Tables and titles stay as they are.
func wrap(text string) string {
	var b strings.Builder
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n\n") {
		if b.Len() > 0 {
			b.WriteString("\n\n")
		}
		switch {
		case strings.HasPrefix(block, "|") || strings.HasPrefix(block, "#"):
			b.WriteString(block)
		case strings.HasPrefix(block, "- "):
			for i, item := range strings.Split(block, "\n") {
				if i > 0 {
					b.WriteByte('\n')
				}
				wrapInto(&b, item, "  ")
			}
		default:
			wrapInto(&b, block, "")
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// wrapInto writes the words of text, with indent before each line but the first.
func wrapInto(b *strings.Builder, text, indent string) {
	used := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case used+1+n > columns:
			b.WriteString("\n" + indent)
			used = len(indent)
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += n
	}
}
