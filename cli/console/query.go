package console

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/itchyny/gojq"

	"miren.dev/runtime/pkg/errs"
)

// SetQuery has what is printed as JSON go through an expression of jq. Errors have
// class InvalidArgument.
func (c *Console) SetQuery(expression string) error {
	q, err := gojq.Parse(expression)
	if err == nil {
		c.query, err = gojq.Compile(q)
	}
	if err != nil {
		return errs.New(errs.InvalidArgument, "%q is no expression of jq: %w", expression, err).
			WithHint("such as '.[].name'; https://jqlang.org/manual/ has the language")
	}
	c.JSON = true
	return nil
}

// printQuery prints each result of the query: a string as it is, another value as
// a line of JSON.
func (c *Console) printQuery(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	for it := c.query.Run(doc); ; {
		v, ok := it.Next()
		if !ok {
			return nil
		}
		if err, failed := v.(error); failed {
			if halt := (*gojq.HaltError)(nil); errors.As(err, &halt) && halt.Value() == nil {
				return nil
			}
			return errs.New(errs.InvalidArgument, "--jq: %w", err)
		}
		if s, ok := v.(string); ok {
			fmt.Fprintln(c.Out, s)
			continue
		}
		b, err := gojq.Marshal(v)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.Out, "%s\n", b)
	}
}
