package rpc

// decodeError is the error of a request that could not be read or is not valid:
// the handler did nothing.
type decodeError struct{ err error }

func (e *decodeError) Error() string { return e.err.Error() }
func (e *decodeError) Unwrap() error { return e.err }

// Decode implements Decoder.
func (sc *serverCall) Decode(v any) error {
	f := func(p []byte) error {
		if err := decode(p, v); err != nil {
			return err
		}
		if val, ok := v.(interface{ Validate() error }); ok {
			return val.Validate()
		}
		return nil
	}
	var err error
	if sc.body != nil {
		err = f(sc.body.b)
		putBuffer(sc.body)
		sc.body = nil
	} else {
		err = sc.st.message(&sc.ctx, f)
	}
	if err == nil {
		if err = sc.authorizeTarget(v); err != nil {
			sc.request = v
		}
	}
	if err != nil {
		return &decodeError{err}
	}
	sc.beginAudit(v)
	return nil
}
