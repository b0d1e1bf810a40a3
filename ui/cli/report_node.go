package cli

import (
	"fmt"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// settingReport is a switch of the kernel. What is unknown is null.
type settingReport struct {
	Name    string     `json:"name"`
	Value   *string    `json:"value"`   // null where the kernel has no such switch, or it cannot be read
	Changed *time.Time `json:"changed"` // null where it was not seen to change
}

func newSettings(v *incident.View) []settingReport {
	out := []settingReport{}
	for _, s := range v.Settings {
		r := settingReport{Name: s.Name}
		if value, known := s.Value.Get(); known {
			r.Value = &value
		}
		if !s.Changed.IsZero() {
			at := s.Changed.Wall.UTC()
			r.Changed = &at
		}
		out = append(out, r)
	}
	return out
}

// told are the switches that text output tells: those that decide what is forwarded.
var told = []string{
	"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables",
}

// textSettings prints the switches that matter, two a line.
func (r report) textSettings(b *strings.Builder) {
	var words []string
	for _, s := range r.Settings {
		for _, name := range told {
			if s.Name != name {
				continue
			}
			value := "–"
			if s.Value != nil {
				value = flannel.Printable(*s.Value)
			}
			words = append(words, name+" "+value)
		}
	}
	for i := 0; i < len(words); i += 2 {
		fmt.Fprintf(b, "  %s\n", strings.Join(words[i:min(i+2, len(words))], ", "))
	}
}

// textLeftovers prints what Flannel left, sort by sort.
func (r report) textLeftovers(b *strings.Builder) {
	if len(r.Leftovers) == 0 {
		return
	}
	b.WriteString("\nleftovers\n")
	for _, kind := range diagnose.RemainKinds {
		for _, x := range r.Leftovers {
			if x.Kind != kind {
				continue
			}
			state := "not in force"
			if x.Active {
				state = "in force"
			}
			fmt.Fprintf(b, "  %-12s  %-12s  %s\n", x.Kind, state, flannel.Printable(x.Object))
			for _, back := range x.Returns {
				for i, line := range folded(flannel.Printable(back), textWidth-30) {
					fmt.Fprintf(b, "  %-12s  %s%s\n", "", map[bool]string{true: "comes back: ", false: "            "}[i == 0], line)
				}
			}
		}
	}
}
