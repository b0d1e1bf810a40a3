package host

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
)

// Claim is what one source says of the node's configuration. What it does not say is left zero.
type Claim struct {
	Source   string    // as a person would name it: a path, "flags of flanneld (pid 812)"
	Written  time.Time // when the source was written, zero if it has no age
	Networks []netip.Prefix
	Subnets  []netip.Prefix
	Settings
}

// Settings is what decides the shape of Flannel's rules beside the networks. Nil and zero mean "not said".
type Settings struct {
	IPMasq       *bool
	IPMasq6      *bool // where it differs from IPMasq
	ForwardRules *bool
	RandomFully  *bool
	NFTables     *bool
	Resync       time.Duration
	MTU          int
}

// Failure is a source that exists, or may exist, and could not be read.
type Failure struct {
	Source string
	Why    string
}

// Evidence is everything that was found.
type Evidence struct {
	Name     string  // host name
	Live     []Claim // what running processes were told, newest process first
	Claims   []Claim // what everything else says, best source first
	Failures []Failure
	Problems []flannel.Problem
	Ignored  []flannel.Problem

	Distribution flannel.Reading[string]
}

// Combine weighs the evidence. Networks and subnets come from Claims, the first that tells them; what a running process
// was told (Live) decides the settings, since files and rules may be older than it.
func Combine(e Evidence, now flannel.Time) flannel.Node {
	why := missing(e.Failures)
	n := flannel.Node{Name: e.Name, Distribution: e.Distribution, Problems: e.Problems, Ignored: e.Ignored}
	n.Networks, n.Written = networks(e.Claims, why, now)
	n.Subnets = subnets(e.Claims, n.Networks.Value, why, now)
	n.Others = others(e.Claims, n)

	all := slices.Concat(e.Live, e.Claims)
	n.IPMasq = first(all, func(c Claim) *bool { return c.IPMasq }, why, now)
	n.IPMasq6 = first(all, func(c Claim) *bool { return cmp.Or(c.IPMasq6, c.IPMasq) }, why, now)
	n.ForwardRules = first(all, func(c Claim) *bool { return c.ForwardRules }, why, now)
	n.RandomFully = first(all, func(c Claim) *bool { return c.RandomFully }, why, now)
	n.NFTables = first(all, func(c Claim) *bool { return c.NFTables }, why, now)
	n.Resync = first(all, func(c Claim) *time.Duration { return unlessZero(c.Resync) }, why, now)
	n.MTU = first(all, func(c Claim) *int { return unlessZero(c.MTU) }, why, now)
	return n
}

// Same tells whether two looks say the same; when they looked does not matter.
func Same(a, b flannel.Node) bool { return reflect.DeepEqual(timeless(a), timeless(b)) }

func timeless(n flannel.Node) flannel.Node {
	for _, at := range []*flannel.Time{
		&n.Networks.At, &n.Subnets.At, &n.IPMasq.At, &n.IPMasq6.At, &n.ForwardRules.At, &n.RandomFully.At,
		&n.NFTables.At, &n.Resync.At, &n.MTU.At, &n.Distribution.At,
	} {
		*at = flannel.Time{}
	}
	return n
}

func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// gap says why a value is missing: verified not to be anywhere, or hidden behind a source that could not be read.
type gap struct {
	state flannel.ReadState
	why   string
}

func missing(failures []Failure) gap {
	if len(failures) == 0 {
		return gap{flannel.Absent, "no source tells it"}
	}
	var b strings.Builder
	for i, f := range failures {
		if i == 3 {
			b.WriteString("; …")
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(f.Source + ": " + f.Why)
	}
	return gap{flannel.Unreadable, b.String()}
}

func first[T any](claims []Claim, get func(Claim) *T, g gap, now flannel.Time) flannel.Reading[T] {
	for _, c := range claims {
		if v := get(c); v != nil {
			return flannel.Know(*v, c.Source, now)
		}
	}
	return flannel.Miss[T](g.state, g.why, "", now)
}

func networks(claims []Claim, g gap, now flannel.Time) (flannel.Reading[[]netip.Prefix], time.Time) {
	for _, c := range claims {
		if len(c.Networks) > 0 {
			return flannel.Know(masked(c.Networks), c.Source, now), c.Written
		}
	}
	return flannel.Miss[[]netip.Prefix](g.state, g.why, "", now), time.Time{}
}

// subnets takes the first subnets that lie inside the networks, since a lower source may speak of another cluster, and
// where none does the first at all.
func subnets(claims []Claim, within []netip.Prefix, g gap, now flannel.Time) flannel.Reading[[]netip.Prefix] {
	var outside *Claim
	for i, c := range claims {
		if len(c.Subnets) == 0 {
			continue
		}
		if inside(c.Subnets, within) {
			return flannel.Know(masked(c.Subnets), c.Source, now)
		}
		if outside == nil {
			outside = &claims[i]
		}
	}
	if outside != nil {
		return flannel.Know(masked(outside.Subnets), outside.Source, now)
	}
	return flannel.Miss[[]netip.Prefix](g.state, g.why, "", now)
}

// inside tells whether every subnet lies in a network of its family, as far as that family has one.
func inside(subnets, networks []netip.Prefix) bool {
	return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
		same := slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Addr().Is4() == s.Addr().Is4() })
		return same && !slices.ContainsFunc(networks, func(n netip.Prefix) bool {
			return n.Bits() <= s.Bits() && n.Contains(s.Addr())
		})
	})
}

// others keeps the sources that contradict what was chosen, in a family of which both speak.
func others(claims []Claim, n flannel.Node) []flannel.Source {
	var out []flannel.Source
	for _, c := range claims {
		if contradicts(c.Networks, n.Networks.Value) || contradicts(c.Subnets, n.Subnets.Value) {
			out = append(out, flannel.Source{
				Name: c.Source, Networks: masked(c.Networks), Subnets: masked(c.Subnets), Written: c.Written,
			})
		}
	}
	return out
}

func contradicts(said, chosen []netip.Prefix) bool {
	for _, f := range flannel.Families {
		a, b := sorted(flannel.Of(f, masked(said))), sorted(flannel.Of(f, chosen))
		if len(a) > 0 && len(b) > 0 && !slices.Equal(a, b) {
			return true
		}
	}
	return false
}

func masked(list []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		if p = p.Masked(); p.IsValid() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func sorted(list []netip.Prefix) []netip.Prefix {
	out := slices.Clone(list)
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
