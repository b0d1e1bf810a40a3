package watcher

import (
	"reflect"
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/host"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

// around reads the node's surroundings, and hands out what differs from the last look.
type around struct {
	ns     *namespace
	reader *host.Around
	nft    *nft.Browser // nil where nf_tables is not there, or cannot be asked
	tried  flannel.Time
	legacy []diagnose.Sign // of the legacy tables, which are looked at on demand only
	last   diagnose.Surroundings
}

func openAround(ns *namespace, files *host.Files) (*around, error) {
	reader, err := within(ns, func() (*host.Around, error) { return host.OpenAround(files) })
	return &around{ns: ns, reader: reader}, err
}

func (a *around) read(near []diagnose.Process, now flannel.Time, sink Sink) {
	s, err := within(a.ns, func() (diagnose.Surroundings, error) { return a.reader.Read(now), nil })
	if err != nil {
		return // the namespace cannot be entered, which is told elsewhere
	}
	s.Signs = a.signs(near, now)
	if a.same(&s) {
		return
	}
	a.last = s
	sink(&incident.Observation{Time: now, Around: &s})
}

// same tells whether a look says nothing new. The times of reading are no news, nor is that time passes for a counter.
func (a *around) same(s *diagnose.Surroundings) bool {
	x, y := a.last, *s
	for _, z := range []*diagnose.Surroundings{&x, &y} {
		z.Routing.At, z.Signs.At, z.Lock.At, z.Counters.At, z.Tools.At = flannel.Time{}, flannel.Time{}, flannel.Time{}, flannel.Time{}, flannel.Time{}
		z.Settings, z.Counters.Value = slices.Clone(z.Settings), slices.Clone(z.Counters.Value)
		for i := range z.Settings {
			z.Settings[i].Value.At = flannel.Time{}
		}
		for i := range z.Counters.Value {
			z.Counters.Value[i].Over = 0
		}
	}
	return reflect.DeepEqual(x, y)
}

// signed are chains by which other parts of a node are known.
var signed = []struct{ owner, table, chain string }{
	{"kubelet", "mangle", "KUBE-IPTABLES-HINT"},
	{"kubelet", "mangle", "KUBE-KUBELET-CANARY"},
	{"kube-proxy", "nat", "KUBE-SERVICES"},
	{"portmap", "nat", "CNI-HOSTPORT-DNAT"},
	{"Calico", "filter", "cali-FORWARD"},
	{"Calico", "nat", "cali-POSTROUTING"},
	{"Cilium", "filter", "CILIUM_FORWARD"},
	{"Cilium", "nat", "CILIUM_POST_nat"},
	{"kube-router", "filter", "KUBE-ROUTER-FORWARD"},
	{"Docker", "filter", "DOCKER-USER"},
}

// programs are those whose processes are signs.
var programs = map[string]string{
	"kube-proxy": "kube-proxy", "calico-node": "Calico", "cilium-agent": "Cilium", "kube-router": "kube-router", "kubelet": "kubelet",
}

// signs looks for the chains that others are known by, and for their programs.
func (a *around) signs(near []diagnose.Process, now flannel.Time) flannel.Reading[[]diagnose.Sign] {
	var out []diagnose.Sign
	for _, p := range near {
		if owner := programs[p.Comm]; owner != "" {
			out = append(out, diagnose.Sign{Owner: owner, What: "process " + flannel.Printable(p.Comm)})
		}
	}
	ids := signedIn(flannel.IptablesNft)
	ids = append(ids, flannel.ChainID{Backend: flannel.Nftables, Family: flannel.IPv4, Table: "inet cni_hostport", Name: "hostports"})
	if there, err := a.exist(ids, now); err != nil {
		return flannel.Miss[[]diagnose.Sign](flannel.Unreadable, err.Error(), nftSource, now)
	} else if there != nil {
		for i, id := range ids {
			if there[i] {
				out = append(out, signOf(id))
			}
		}
	}
	return flannel.Know(append(out, a.legacy...), nftSource, now)
}

func signedIn(b flannel.Backend) []flannel.ChainID {
	var ids []flannel.ChainID
	for _, f := range flannel.Families {
		for _, s := range signed {
			ids = append(ids, flannel.ChainID{Backend: b, Family: f, Table: s.table, Name: s.chain})
		}
	}
	return ids
}

func signOf(id flannel.ChainID) diagnose.Sign {
	owner := "portmap"
	for _, s := range signed {
		if s.table == id.Table && s.chain == id.Name {
			owner = s.owner
		}
	}
	return diagnose.Sign{Owner: owner, What: "chain " + id.Name + " in " + id.TableID().String(), Chain: id}
}

// exist asks nf_tables; it gives nil where that is not there.
func (a *around) exist(ids []flannel.ChainID, now flannel.Time) ([]bool, error) {
	if a.nft == nil {
		if !a.tried.IsZero() && now.Sub(a.tried) < retry {
			return nil, nil
		}
		a.tried = now
		b, err := within(a.ns, nft.Browse)
		if err != nil {
			return nil, nil // that nf_tables cannot be read is told by its own reader
		}
		a.nft = b
	}
	return a.nft.Exist(ids)
}

// hunt looks at the legacy tables too, of which each look copies whole tables.
func (a *around) hunt() {
	a.legacy = nil
	_ = a.ns.do(func() error {
		b, err := legacy.Browse()
		if err != nil {
			return nil // that they cannot be read is told by their own reader
		}
		names := map[flannel.TableID][]string{}
		for _, id := range signedIn(flannel.IptablesLegacy) {
			list, read := names[id.TableID()]
			if !read {
				list, _ = b.Names(id.TableID())
				names[id.TableID()] = list
			}
			if slices.Contains(list, id.Name) {
				a.legacy = append(a.legacy, signOf(id))
			}
		}
		return b.Close()
	})
}

func (a *around) close() []error {
	var errs []error
	if a.nft != nil {
		errs = append(errs, a.nft.Close())
	}
	if a.reader != nil {
		errs = append(errs, a.reader.Close())
	}
	return errs
}

// Hunt looks through the node's files and legacy tables for what a former Flannel left and what comes back at boot. It is for
// when somebody asks; not while Run runs.
func (w *Watcher) Hunt(sink Sink) {
	now := w.clock.now()
	w.host.around.hunt()
	w.host.around.read(w.host.last.near, now, sink)
	w.host.hunt(now, sink)
}

// Locked tells whether somebody held the lock of iptables-legacy at the last look. Most hold it for milliseconds.
func (w *Watcher) Locked() bool { return w.host.around.last.Lock.State == flannel.Known }

// WantHunt makes Run look through the files soon. It may be called at any time.
func (w *Watcher) WantHunt() {
	select {
	case w.hunts <- struct{}{}:
	default:
	}
}

// hunt looks through the files.
func (h *hostFacts) hunt(now flannel.Time, sink Sink) {
	r := host.Remains(h.files, "/proc", h.last.node.Networks.Value, h.around.last.Routing.Value.Pods, now)
	sink(&incident.Observation{Time: now, Remains: &r})
}
