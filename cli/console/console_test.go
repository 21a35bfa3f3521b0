package console

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in    string
		width int
		want  string
	}{
		{"short", 10, "short"},
		{"exactly ten", 11, "exactly ten"},
		{"much too long", 8, "much to…"},
		{"\x1b[31mred and long\x1b[0m", 5, "\x1b[31mred …\x1b[0m"},
		{"\x1b[2Jevil\x07\ttab", 0, " [2Jevil  tab"},
		{"bad \xff utf", 0, "bad   utf"},
		{"äöü", 3, "äöü"},
		{"äöüß", 3, "äö…"},
	} {
		if got := Cut(c.in, c.width); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.in, c.width, got, c.want)
		}
	}
}

func TestLive(t *testing.T) {
	var out bytes.Buffer
	c := &Console{Out: &out, Terminal: true, Size: func() (int, int) { return 10, 4 }}
	l := c.Live()
	l.Draw([]string{"one", "two"})
	l.Println("for good")
	l.Draw([]string{"1", "2", "3", "4", "5"}) // the height leaves room for three
	l.Draw(nil)
	want := "one\ntwo\n" + "\x1b[2A\r\x1b[Jfor good\n" + "3\n4\n5\n" + "\x1b[3A\r\x1b[J"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	c := &Console{Out: &out}
	c.Table([]string{"A", "B"}, [][]string{{"x\ty", "2"}, {"line\nbreak", ""}})
	if got := out.String(); got != "x y\t2\nline break\t\n" {
		t.Errorf("plain: %q", got)
	}
	out.Reset()
	c.Terminal, c.Color, c.Size = true, true, func() (int, int) { return 80, 25 }
	c.Table([]string{"A", "B"}, [][]string{{c.Paint(Red, "x"), "2"}, {"long", "3"}})
	lines := strings.Split(out.String(), "\n")
	if lines[1] != "\x1b[31mx\x1b[0m     2" || lines[2] != "long  3" {
		t.Errorf("terminal: %q", lines)
	}
}

func TestConfirm(t *testing.T) {
	for in, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "": false} {
		var errw bytes.Buffer
		c := &Console{In: strings.NewReader(in), Err: &errw, InTerminal: true}
		if got, err := c.Confirm("sure"); got != want || err != nil {
			t.Errorf("%q: %v %v", in, got, err)
		}
	}
	if _, err := (&Console{}).Confirm("sure"); err == nil {
		t.Error("without a terminal there must be an error")
	}
}

func TestAsk(t *testing.T) {
	var errw bytes.Buffer
	c := &Console{In: strings.NewReader("bad\n good \n\nlast"), Err: &errw, InTerminal: true}
	check := func(s string) error {
		if s == "bad" {
			return errors.New("it is bad")
		}
		return nil
	}
	for _, want := range []string{"good", "default", "last", "default"} {
		if got, err := c.Ask("What", "default", check); err != nil || got != want {
			t.Errorf("answer %q, %v, want %q", got, err, want)
		}
	}
	if s := errw.String(); strings.Count(s, "What [default]: ") != 5 || strings.Count(s, "it is bad\n") != 1 {
		t.Errorf("printed %q", s)
	}
	c.In = strings.NewReader("bad")
	if _, err := c.Ask("What", "", check); err == nil {
		t.Error("the end of the input made a bad answer good")
	}
}
