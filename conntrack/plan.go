package conntrack

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// Plan is a deletion of exactly the listed entries.
type Plan struct {
	ID    string // a hash of the entries; another list has another
	Flows []Sample
}

// MaxPlan is how many entries one plan deletes at most: as many as a survey lists, so that each was on the list.
const MaxPlan = MaxFlows * 4

// CanUnstick tells whether the deletion of such a flow helps. One that arrives translated was translated on another node:
// there it has to be deleted.
func CanUnstick(k Kind) bool { return k == Bare || k == Translated || k == Stale }

// Unstick plans the deletion of the flows of the given kinds.
func Unstick(s *Survey, kinds ...Kind) Plan {
	var p Plan
	for i := range s.Flows {
		if k := s.Flows[i].Kind; CanUnstick(k) && slices.Contains(kinds, k) {
			p.Flows = append(p.Flows, s.Flows[i])
		}
	}
	slices.SortFunc(p.Flows, compareSamples)
	h := sha256.New()
	for i := range p.Flows {
		f := &p.Flows[i].Flow
		fmt.Fprintf(h, "%v %v %d %d\n", f.Orig, f.Reply, f.Zone, f.ID)
	}
	p.ID = hex.EncodeToString(h.Sum(nil))[:12]
	return p
}

// Effect says what the ends of the plan's flows will notice.
func (p Plan) Effect() []string {
	n := map[Kind]int{}
	tcp := 0
	for i := range p.Flows {
		n[p.Flows[i].Kind]++
		if p.Flows[i].Flow.Orig.Proto == TCP && p.Flows[i].Flow.Replied() {
			tcp++
		}
	}
	var out []string
	if n[Bare] > 0 {
		out = append(out, "the next packet of a bare flow is looked at anew: with Flannel's rule in place it leaves with the node's address")
	}
	if n[Translated] > 0 {
		out = append(out, "the next packet of a translated flow keeps the pod's own address; the other end takes it for a new connection")
	}
	if n[Stale] > 0 {
		out = append(out, "the next packet of a stale flow goes where its service leads now, or is refused")
	}
	if tcp > 0 {
		out = append(out, fmt.Sprintf("%d TCP connections that were answered are cut off: their ends see a reset or a timeout", tcp))
	}
	return append(out, "this cannot be undone: the kernel makes new entries, never the same ones")
}
