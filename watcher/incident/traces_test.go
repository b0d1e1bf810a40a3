package incident

import (
	"slices"
	"testing"
	"time"

	"flanwatch/flannel"
)

// step is one commit of a recorded life of flanneld: when, by which program, and what.
type step struct {
	ms   float64
	comm string
	do   func(w *world)
}

// remove takes the first rules out of a chain; of a base chain, its jump.
func remove(id flannel.ChainID, n int) func(*world) {
	return func(w *world) {
		c := w.rules[id.Backend].Chain(id)
		c.Entries = slices.Clone(c.Entries[n:])
	}
}

// write writes a chain of Flannel's with its jump anew, as its restore does.
func write(id flannel.ChainID) func(*world) {
	return func(w *world) {
		kept := w.rules[id.Backend].Clone()
		w.fill(id.Backend)
		for i := range kept.Chains { // the other chains stay as they were
			if k := kept.Chains[i]; k.ID != id && k.ID != baseOf(id) {
				w.rules[id.Backend].Chains[i] = k
			}
		}
	}
}

func both(do ...func(*world)) func(*world) {
	return func(w *world) {
		for _, d := range do {
			d(w)
		}
	}
}

func dropTable(id flannel.TableID) func(*world) {
	return func(w *world) {
		rs := w.rules[id.Backend]
		rs.Tables = slices.DeleteFunc(slices.Clone(rs.Tables), func(t flannel.TableID) bool { return t == id })
		for i := range rs.Chains {
			if rs.Chains[i].ID.TableID() == id {
				rs.Chains[i] = flannel.Chain{ID: rs.Chains[i].ID}
			}
		}
	}
}

func makeTable(id flannel.TableID) func(*world) {
	return func(w *world) { w.rules[id.Backend].Tables = append(slices.Clone(w.rules[id.Backend].Tables), id) }
}

// life is what flanneld did, in the commits and at the distances recorded of a real one, when its processes came and went,
// and the incidents that it makes.
type life struct {
	name   string
	in     flannel.Backend
	gone   float64 // when the process had ended, 0 if it did not
	back   float64 // when a new one was started
	steps  []step
	kinds  []Kind
	window []float64 // milliseconds
	fresh  bool      // it writes rules never seen before, of which only a read tells
}

var (
	fwdNative   = flannel.ForwardChain(flannel.Nftables, flannel.IPv4)
	nativeTable = native.TableID()
)

var lives = []life{
	{"v0.20.2, SIGKILL and start", nft, 500, 520, []step{
		{1339.628, "iptables", remove(masq, 6)},
		{1356.926, "iptables", remove(fwd, 2)},
		{1392.193, "iptables-restor", write(masq)},
		{1400.256, "iptables-restor", write(fwd)},
	}, []Kind{KindStartup}, []float64{60.628}, false},
	{"v0.28.10, SIGKILL and start", nft, 1213, 1230, []step{
		{2401.671, "iptables", remove(masq, 6)},
		{2591.948, "iptables-restor", write(masq)},
		{2644.195, "iptables", remove(fwd, 2)},
		{2672.448, "iptables-restor", write(fwd)},
	}, []Kind{KindStartup}, []float64{270.777}, false},
	{"v0.28.10, start without its old settings", nft, 600, 620, []step{
		{1403.979, "iptables-restor", both(remove(masq, 1), remove(baseOf(masq), 1))},
		{1418.559, "iptables", remove(masq, 5)},
		{1460.728, "iptables-restor", write(masq)},
	}, []Kind{KindStartup}, []float64{56.749}, false},
	{"v0.26.5, SIGTERM, stopped, start", nft, 2280, 5100, []step{
		{2263.058, "iptables-restor", both(remove(fwd, 2), remove(baseOf(fwd), 1))},
		{2274.128, "iptables-restor", both(remove(masq, 6), remove(baseOf(masq), 1))},
		{5371.637, "iptables-restor", write(fwd)},
		{5437.186, "iptables-restor", write(masq)},
	}, []Kind{KindTeardown}, []float64{3174.128}, false},
	{"v0.26.5 native, SIGTERM, stopped, start", flannel.Nftables, 1300, 4200, []step{
		{1240.936, "nft", dropTable(nativeTable)},
		{4376.375, "nft", makeTable(nativeTable)},
		{4426.493, "nft", func(w *world) {
			w.fill(flannel.Nftables)
			*w.rules[flannel.Nftables].Chain(fwdNative) = flannel.Chain{ID: fwdNative}
		}},
		{4437.694, "nft", func(w *world) { w.fill(flannel.Nftables) }},
	}, []Kind{KindTeardown}, []float64{3196.758}, false},
	{"v0.28.10 native, SIGKILL and start", flannel.Nftables, 500, 520, []step{
		{1397.325, "nft", func(w *world) { w.fill(flannel.Nftables) }},
	}, nil, nil, false},
	{"v0.28.10, from iptables to nftables", nft, 300, 320, []step{
		{744.047, "iptables", remove(masq, 6)},
		{799.219, "nft", makeTable(nativeTable)},
		{1137.727, "nft", func(w *world) {
			w.fill(flannel.Nftables)
			*w.rules[flannel.Nftables].Chain(fwdNative) = flannel.Chain{ID: fwdNative}
		}},
		{1144.895, "nft", func(w *world) { w.fill(flannel.Nftables) }},
	}, []Kind{KindResidue}, []float64{393.680}, true},
	{"v0.28.10, damage repaired by its resync", nft, 0, 0, []step{
		{600.232, "iptables", remove(masq, 1)},
		{3817.262, "iptables-restor", write(masq)},
		{15244.327, "iptables", remove(masq, 6)},
		{19679.761, "iptables-restor", write(masq)},
		{22832.503, "iptables", remove(baseOf(masq), 1)},
		{25614.362, "iptables-restor", write(masq)},
		{137001.226, "iptables", both(remove(masq, 6), remove(baseOf(masq), 1))},
		{137017.892, "iptables", func(w *world) {
			*w.rules[nft].Chain(masq), *w.rules[nft].Chain(baseOf(masq)) = flannel.Chain{ID: masq}, flannel.Chain{ID: baseOf(masq)}
		}},
		{141381.948, "iptables", func(w *world) { w.rules[nft].Chain(masq).Present = true }},
		{141453.873, "iptables-restor", write(masq)},
	}, []Kind{KindPartial, KindFlushed, KindFlapping, KindRulesetFlush}, []float64{3217.030, 4435.434, 2781.859, 4452.647}, false},
}

// TestRecordedLivesOfFlanneld plays each recorded life twice: with a read right behind each commit, and with reads once a
// second only, when announcements alone tell the times.
func TestRecordedLivesOfFlanneld(t *testing.T) {
	for _, l := range lives {
		for _, reads := range []bool{true, false} {
			if reads || !l.fresh {
				t.Run(l.name, func(t *testing.T) { l.play(t, reads) })
			}
		}
	}
}

func (l life) play(t *testing.T, reads bool) {
	w := newWorld(t, l.in)
	start := w.now
	at := func(ms float64) flannel.Time { return start.Add(time.Duration(ms * float64(time.Millisecond))) }
	readAll := func() { w.read(nft).read(flannel.Nftables) }
	readAll()
	running := w.flanneld(time.Hour)
	poll := func(until float64) {
		for next := w.now.Sub(start).Truncate(time.Second) + time.Second; next.Seconds()*1000 < until; next += time.Second {
			w.now = start.Add(next)
			ms := next.Seconds() * 1000
			switch {
			case l.back > 0 && ms >= l.back:
				running.Started = at(l.back)
				w.procs(running)
			case l.gone > 0 && ms >= l.gone:
				w.procs()
			}
			readAll()
		}
	}
	for _, st := range l.steps {
		poll(st.ms)
		w.now = at(st.ms)
		w.change(func() { st.do(w) }).announce(st.comm)
		if reads {
			w.wait(200 * time.Microsecond)
			readAll()
		}
	}
	poll(l.steps[len(l.steps)-1].ms + 2500)

	var kinds []Kind
	for n, i := range w.view().Incidents {
		kinds = append(kinds, i.Kind)
		if got := i.Duration(w.now).Seconds() * 1000; i.Open || n >= len(l.window) || got < l.window[n]-1 || got > l.window[n]+1 {
			t.Errorf("window %.3f ms, want %v: %+v", got, l.window, i)
		}
		if !i.Complete {
			t.Errorf("not complete: %+v", i)
		}
	}
	if !slices.Equal(kinds, l.kinds) {
		t.Errorf("kinds %q, want %q", kinds, l.kinds)
	}
}
