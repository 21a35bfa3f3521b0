package appconfig

// Preview says how a preview of the app differs from its active version.
type Preview struct {
	Release  bool              // the release command runs for it too
	Services []string          // that it runs besides the default one
	Env      map[string]string // comes after every other
}

// preview reads the table preview.
func (p *parser) preview(to **Preview) field {
	var release *bool
	keys := func(v *Preview) table {
		return table{
			"release":  p.flag(&release),
			"services": p.list(&v.Services, serviceName),
			"env":      p.env(&v.Env),
		}
	}
	return field{object(keys(&Preview{})), func(key string, v any) {
		*to = &Preview{}
		p.table(keys(*to)).set(key, v)
		(*to).Release = release != nil && *release
	}}
}
