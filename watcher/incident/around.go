package incident

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// grave are the switches without which pods reach less.
var grave = []string{
	"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables",
}

// applyAround takes a look at the node's surroundings. A switch that somebody turned is an event.
func (s *State) applyAround(a *diagnose.Surroundings, at flannel.Time) {
	for _, now := range a.Settings {
		before := s.facts.Around.Setting(now.Name)
		if before.Value.State != flannel.Known || now.Value.State == flannel.Unreadable || before.Value.Value == now.Value.Value {
			continue
		}
		e := Event{Time: at, Kind: EventSetting, Severity: diagnose.Info, Text: turned(before, now)}
		if slices.Contains(grave, now.Name) && now.Value.Value != "1" {
			e.Severity = diagnose.Warning
		}
		s.note(e)
	}
	s.facts.Around = a.Clone()
	s.judge(at)
}

func turned(before, now diagnose.Setting) string {
	if now.Value.State == flannel.Absent {
		return fmt.Sprintf("%s is gone, it was %s", now.Name, flannel.Printable(before.Value.Value))
	}
	return fmt.Sprintf("%s turned from %s to %s", now.Name, flannel.Printable(before.Value.Value), flannel.Printable(now.Value.Value))
}
