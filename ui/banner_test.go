package ui

import (
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"

	"github.com/charmbracelet/x/ansi"
)

func TestTheBannerSaysTheWorstThingInOneSentence(t *testing.T) {
	change := func(v *incident.View, f func(*incident.View)) *incident.View { f(v); return v }
	for _, c := range []struct {
		name string
		view *incident.View
		old  time.Duration
		want string
	}{
		{"nothing read yet", nil, 0, "○ READING  first look at the packet filter"},
		{"nothing ever read", nil, 4 * time.Second, "✗ NO READING   nothing was read for 4 s"},
		{"healthy", healthy(), 0, "● OK  4 chains as Flannel wants them · last change 11:58:00 by iptables[47110]"},
		{"healthy again", recovered(), 0, "● OK  4 chains as Flannel wants them · last incident 12:04:27: flushed, 4.8 s, by iptables[48213]"},
		{"empty", emptied(), 0, "✗ CRITICAL   v4 nat FLANNEL-POSTRTG empty for 4.2 s · emptied by iptables[48213] ← bash[47990] · +1 more"},
		{"empty, and time goes on", emptied(), 2 * time.Second, "✗ CRITICAL   v4 nat FLANNEL-POSTRTG empty for 6.2 s · emptied by iptables[48213] ← bash[47990] · +1 more"},
		{"who is known from the incident alone", change(emptied(), func(v *incident.View) {
			v.Events = nil
			v.Incidents = []incident.Incident{{Open: true, By: &incident.Who{PID: 9, Comm: "nft"}, Spells: []incident.Spell{{Chain: v.Chains[0].ID, Open: true}}}}
		}), 0, "✗ CRITICAL   v4 nat FLANNEL-POSTRTG empty for 4.2 s · begun by nft[9] · +1 more"},
		{"two backends", sideBySide(), 0, "▲ WARNING   legacy v4 nat FLANNEL-POSTRTG left over for 10 min 31 s · +1 more"},
		{"old", emptied(), 8 * time.Second, "✗ STALE   no reading for 8 s; what is shown was true at 12:04:31 UTC"},
		{"one reader fails", readerFailing(), 0, "✗ CANNOT READ   iptables-nft: netlink receive: no buffer space available"},
		{"a critical finding beside a reader that fails", change(emptied(), func(v *incident.View) {
			v.Backends = append(v.Backends, incident.BackendView{Backend: flannel.IptablesLegacy, State: flannel.Unreadable, Why: "x"})
		}), 0, "✗ CRITICAL   v4 nat FLANNEL-POSTRTG empty for 4.2 s"},
		{"the watcher is in trouble", change(healthy(), func(v *incident.View) {
			v.Faults = []incident.Fault{{Reader: "namespace", Why: "the namespace is gone"}}
		}), 0, "✗ CANNOT READ   namespace: the namespace is gone"},
		{"no Flannel", noFlannel(), 0, "○ NO FLANNEL  nothing of Flannel in this network namespace"},
		{"a finding without a chain", change(healthy(), func(v *incident.View) {
			v.Findings = []diagnose.Finding{{ID: "ip-forward-off", Severity: diagnose.Critical, Summary: "ip_forward is off"}}
		}), 0, "✗ CRITICAL   ip_forward is off"},
		{"a note asks for nobody", change(healthy(), func(v *incident.View) {
			v.Findings = []diagnose.Finding{{ID: "rule-variant", Severity: diagnose.Info, Summary: "x"}}
			v.Chains[0].State = flannel.ChainDiffers
		}), 0, "○ NOTED  3 of 4 chains are as Flannel wants them"},
		{
			"flanneld is starting", change(healthy(), func(v *incident.View) { v.Flannel.State = diagnose.FlannelStarting }), 0,
			"○ STARTING  flanneld has just started; 4 of 4 chains",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := still(t, c.view, Options{})
			m.width, m.height = 120, 30
			m.old = c.old
			if got := strings.TrimSpace(ansi.Strip(m.banner())); !strings.HasPrefix(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A node that cannot be read must never look like a healthy one.
func TestOnlyAHealthyNodeSaysOK(t *testing.T) {
	for _, sc := range scenes {
		m := still(t, sc.view(), Options{})
		if sc.set != nil {
			sc.set(m)
		}
		ok := strings.Contains(plain(m.at(100, 30)), "● OK")
		healthy := sc.name == "healthy" || sc.name == "recovered" || sc.name == "native" || sc.name == "help"
		if ok != healthy {
			t.Errorf("%s: OK is %v", sc.name, ok)
		}
	}
}
