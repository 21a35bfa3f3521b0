package app

import (
	"slices"

	"miren.dev/runtime/api/id"
)

// Shares returns the versions that serve, the active one first.
func (s *AppStatus) Shares() []TrafficShare {
	if len(s.Traffic) == 0 && s.ActiveVersion != "" { // written by an earlier server
		return []TrafficShare{{Version: s.ActiveVersion, Weight: 100}}
	}
	return s.Traffic
}

// Active returns the version that gets the requests to the app's hosts, or most of them while another one is tried out;
// "" if none serves yet.
func (s *AppStatus) Active() id.AppVersion {
	for _, t := range s.Shares() {
		if t.Host == "" {
			return t.Version
		}
	}
	return ""
}

// Versions returns each version that serves once, the active one first.
func (s *AppStatus) Versions() []id.AppVersion {
	var all []id.AppVersion
	for _, t := range s.Shares() {
		if !slices.Contains(all, t.Version) {
			all = append(all, t.Version)
		}
	}
	return all
}

// Serves reports whether a version gets requests.
func (s *AppStatus) Serves(v id.AppVersion) bool {
	return slices.Contains(s.Versions(), v)
}

// Activate gives a version all requests to the app's hosts; "" takes them from all. Versions with a host of their own
// keep that.
func (s *AppStatus) Activate(v id.AppVersion) {
	shares := slices.DeleteFunc(slices.Clone(s.Shares()), func(t TrafficShare) bool { return t.Host == "" })
	if v != "" {
		shares = slices.Insert(shares, 0, TrafficShare{Version: v, Weight: 100})
	}
	s.set(shares)
}

// Try gives a version a share of the requests to the app's hosts, in percent, and the active one the rest.
func (s *AppStatus) Try(v id.AppVersion, percent int64) {
	s.Activate(s.Active())
	s.Traffic[0].Weight = 100 - percent
	s.set(slices.Insert(s.Traffic, 1, TrafficShare{Version: v, Weight: percent}))
}

// Canary returns the version that gets a share of the requests to the app's hosts beside the active one; "" if there is
// none.
func (s *AppStatus) Canary() id.AppVersion {
	active := s.Active()
	for _, t := range s.Shares() {
		if t.Host == "" && t.Version != active {
			return t.Version
		}
	}
	return ""
}

// Preview returns the share of a preview, nil if there is none of that name.
func (s *AppStatus) Preview(name string) *TrafficShare {
	i := slices.IndexFunc(s.Traffic, func(t TrafficShare) bool { return t.Preview == name })
	if i < 0 || name == "" {
		return nil
	}
	return &s.Traffic[i]
}

// Previews returns the shares of previews.
func (s *AppStatus) Previews() []TrafficShare {
	return slices.DeleteFunc(slices.Clone(s.Shares()), func(t TrafficShare) bool { return t.Preview == "" })
}

// SetPreview adds the share of a preview, or replaces the one of that name.
func (s *AppStatus) SetPreview(share TrafficShare) {
	shares := slices.Clone(s.Shares())
	if i := slices.IndexFunc(shares, func(t TrafficShare) bool { return t.Preview == share.Preview }); i >= 0 {
		shares[i] = share
	} else {
		shares = append(shares, share)
	}
	s.set(shares)
}

// EndPreview takes the share of a preview away.
func (s *AppStatus) EndPreview(name string) {
	s.set(slices.DeleteFunc(slices.Clone(s.Shares()), func(t TrafficShare) bool { return t.Preview == name && name != "" }))
}

// set replaces the list, and the references that keep its versions from being deleted.
func (s *AppStatus) set(shares []TrafficShare) {
	s.Traffic, s.ActiveVersion = shares, ""
	s.Serving = s.Versions()
}
