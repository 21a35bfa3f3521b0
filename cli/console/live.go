package console

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Live is the last lines of the screen, which are redrawn below the printed
// lines. It is for one goroutine.
type Live struct {
	c     *Console
	drawn int // lines on the screen
}

// Live returns a Live that begins at the cursor. It draws only on a terminal.
func (c *Console) Live() *Live { return &Live{c: c} }

// Draw replaces the drawn lines. Lines are cut to the width of the terminal; if
// they exceed its height, the first ones are left out.
func (l *Live) Draw(lines []string) {
	if !l.c.Terminal {
		return
	}
	if h := l.c.Height(); h > 1 && len(lines) > h-1 {
		lines = lines[len(lines)-h+1:]
	}
	var b strings.Builder
	l.erase(&b)
	w := l.c.Width()
	for _, s := range lines {
		b.WriteString(Cut(s, w) + "\n")
	}
	l.drawn = len(lines)
	fmt.Fprint(l.c.Out, b.String())
}

// Println prints a line above the next drawing.
func (l *Live) Println(s string) {
	var b strings.Builder
	l.erase(&b)
	l.drawn = 0
	b.WriteString(s + "\n")
	fmt.Fprint(l.c.Out, b.String())
}

// erase moves to the first drawn line and clears to the end of the screen.
func (l *Live) erase(b *strings.Builder) {
	if l.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r\x1b[J", l.drawn)
	}
}

// Cut shortens a line, which may contain colours, to width columns; 0 is
// unlimited. An ellipsis marks the cut. Control characters other than colours
// become spaces.
func Cut(s string, width int) string {
	var b strings.Builder
	columns, colored := 0, false
	for i := 0; i < len(s); {
		if s[i] == '\x1b' {
			end := strings.IndexByte(s[i:], 'm')
			if end > 0 && strings.HasPrefix(s[i:], "\x1b[") && strings.Trim(s[i+2:i+end], "0123456789;") == "" {
				b.WriteString(s[i : i+end+1])
				colored = s[i:i+end+1] != "\x1b[0m"
				i += end + 1
				continue
			}
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r < ' ' || r == 0x7f || r == utf8.RuneError && n == 1 {
			r = ' '
		}
		if width > 0 && columns == width-1 && Columns(s[i+n:]) > 0 {
			b.WriteRune('…')
			break
		}
		b.WriteRune(r)
		columns++
		i += n
	}
	if colored {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}

// Fold breaks a line between words where it would exceed width columns; 0 is
// unlimited. Further lines begin with indent.
func Fold(s string, width int, indent string) (lines []string) {
	for words := strings.Split(s, " "); len(words) > 0; {
		line := words[0]
		if len(lines) > 0 {
			line = indent + line
		}
		for words = words[1:]; len(words) > 0 && (width == 0 || Columns(line)+1+Columns(words[0]) <= width); words = words[1:] {
			line += " " + words[0]
		}
		lines = append(lines, line)
	}
	return lines
}

// Columns returns how many columns s takes; colours take none.
func Columns(s string) int {
	n := 0
	for i := 0; i < len(s); {
		if strings.HasPrefix(s[i:], "\x1b[") {
			if end := strings.IndexByte(s[i:], 'm'); end > 0 {
				i += end + 1
				continue
			}
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		n++
		i += size
	}
	return n
}

// Spinner is the frame of a spinner at step n.
func Spinner(n int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[n%len(frames)])
}
