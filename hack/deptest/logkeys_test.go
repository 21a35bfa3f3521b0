package deptest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// oneKey maps another spelling of a key to the key to use, so that one search
// finds all log lines about a thing.
var oneKey = map[string]string{
	"err": "error", "errno": "error", "cause": "error",
	"wait": "retry_in", "backoff": "retry_in", "delay": "retry_in",
	"remote": "peer", "remote_addr": "peer", "client": "peer", "addr": "address",
	"op": "operation", "was": "previous", "old": "previous",
	"app_name": "app", "sandbox_id": "sandbox", "node_id": "node", "node_name": "node", "deployment_id": "deployment",
	"build_id": "build", "pool_id": "pool", "disk": "volume", "volume_id": "volume", "vol": "volume", "export": "volume",
	"image_ref": "image", "ref": "image", "rev": "revision", "namespace": "project",
	"part": "component", "elapsed": "took", "duration": "took", "folder": "dir", "directory": "dir", "state": "state_dir",
}

// skipped is the number of arguments before the keys and values of a call.
var skipped = map[string]int{
	"Debug": 1, "Info": 1, "Warn": 1, "Error": 1,
	"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3, "With": 0,
}

var (
	keyForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	logger  = regexp.MustCompile(`(?i)(^|\.)(log|logger|slog)$`)
)

// TestLogKeysHaveOneSpelling holds that each key of a log line is lower-case
// with underscores, and that each thing has one key.
func TestLogKeysHaveOneSpelling(t *testing.T) {
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return
		}
		fset := token.NewFileSet()
		for pos, why := range wrongLogKeys(parse(t, fset, path)) {
			t.Errorf("%s: %s", fset.Position(pos), why)
		}
	})
}

func TestPlantedLogKeysAreFound(t *testing.T) {
	const file = "testdata/logkeys/planted.go"
	fset := token.NewFileSet()
	found := map[int]bool{}
	for pos := range wrongLogKeys(parse(t, fset, file)) {
		found[fset.Position(pos).Line] = true
	}
	wantMarked(t, file, found)
}

// TestLoggersHaveOneName holds that a field for a logger is named Logger or
// logger, and not Log.
func TestLoggersHaveOneName(t *testing.T) {
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		fset := token.NewFileSet()
		for _, pos := range wrongLoggers(parse(t, fset, path)) {
			t.Errorf("%s: name the logger Logger, or logger", fset.Position(pos))
		}
	})
}

func TestPlantedLoggersAreFound(t *testing.T) {
	const file = "testdata/loggers/planted.go"
	fset := token.NewFileSet()
	found := map[int]bool{}
	for _, pos := range wrongLoggers(parse(t, fset, file)) {
		found[fset.Position(pos).Line] = true
	}
	wantMarked(t, file, found)
}

// wrongLoggers finds fields of type *slog.Logger with the name Log.
func wrongLoggers(f *ast.File) (found []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range s.Fields.List {
			star, ok := field.Type.(*ast.StarExpr)
			if !ok || name(star.X) != "slog.Logger" {
				continue
			}
			for _, n := range field.Names {
				if strings.EqualFold(n.Name, "log") {
					found = append(found, n.Pos())
				}
			}
		}
		return true
	})
	return found
}

// wrongLogKeys finds keys in calls of a logger, and of slog's attributes.
func wrongLogKeys(f *ast.File) map[token.Pos]string {
	found := map[token.Pos]string{}
	check := func(x ast.Expr) {
		lit, ok := x.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return
		}
		key, err := strconv.Unquote(lit.Value)
		switch other, wrong := oneKey[key]; {
		case err != nil:
		case wrong:
			found[lit.Pos()] = fmt.Sprintf("log key %q: use %q", key, other)
		case !keyForm.MatchString(key):
			found[lit.Pos()] = fmt.Sprintf("log key %q: use lower case and underscores", key)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		fun, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !logger.MatchString(name(fun.X)) {
			return true
		}
		skip, ok := skipped[fun.Sel.Name]
		if !ok { // slog.String(key, value) and the like
			if name(fun.X) == "slog" && len(call.Args) == 2 {
				check(call.Args[0])
			}
			return true
		}
		for i := skip; i < len(call.Args); i++ {
			if _, attr := call.Args[i].(*ast.CallExpr); !attr { // an attribute stands alone
				check(call.Args[i])
				i++
			}
		}
		return true
	})
	return found
}
