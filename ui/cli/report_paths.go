package cli

import (
	"fmt"
	"strings"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/incident"
)

// pathReport is what becomes of one typical packet.
type pathReport struct {
	Path     path.Name      `json:"path"`
	Family   flannel.Family `json:"family"`
	Verdict  path.Kind      `json:"verdict"`
	Expected path.Kind      `json:"expected"` // "unknown" where nothing tells
	By       *path.By       `json:"by"`       // null where no rule decides
	Unknown  []string       `json:"unknown"`  // why the verdict is may or unknown

	well     bool
	from, to string
	others   []path.By
}

func newPathReports(v incident.PathsView) []pathReport {
	list := []pathReport{}
	for _, p := range v.List {
		r := pathReport{
			Path: p.Packet.Path, Family: p.Packet.Family, Verdict: p.Kind, Expected: p.Expected, By: p.By, Unknown: []string{},
			well: p.Well(), from: p.Packet.Source.String(), to: p.Packet.Destination.String(), others: p.Others,
		}
		r.Unknown = append(r.Unknown, p.Unknown...)
		list = append(list, r)
	}
	return list
}

// mostOthers is how many other rules that may decide are printed of a path.
const mostOthers = 3

// textPaths prints what becomes of typical packets, with the rule that decides.
func (r report) textPaths(b *strings.Builder) {
	if len(r.Paths) == 0 {
		return
	}
	b.WriteString("\npaths, each with the rule that decides\n")
	for _, p := range r.Paths {
		mark, wanted := "●", ""
		switch {
		case !p.well:
			mark, wanted = "▲", ", wanted "+string(p.Expected)
		case p.Verdict == path.May || p.Verdict == path.Unknown:
			mark = "?"
		}
		fmt.Fprintf(b, "%s %s %-25s %s%s\n", mark, p.Family.Short(), p.Path, p.Verdict, wanted)
		if p.By != nil {
			b.WriteString(indented(byText(p.By)))
		}
		if p.Verdict == path.May {
			for i, o := range p.others {
				if i == mostOthers {
					fmt.Fprintf(b, "       and %d more rules\n", len(p.others)-i)
					break
				}
				b.WriteString(indented("or " + byText(&o)))
			}
		}
		for i, u := range p.Unknown {
			if i == mostOthers {
				fmt.Fprintf(b, "       and %d more\n", len(p.Unknown)-i)
				break
			}
			b.WriteString(indented("not understood: " + flannel.Printable(u)))
		}
	}
}

// byText names a rule with its owner and its words.
func byText(b *path.By) string {
	place := fmt.Sprintf("%s %s %s", b.Backend, b.Table, b.Chain)
	if b.Position > 0 {
		place += fmt.Sprintf(" %d", b.Position)
	}
	return flannel.Printable(fmt.Sprintf("%s (%s): %s", place, b.Owner, b.Text))
}

// columns is the width that text output keeps to.
const columns = 100

// indented breaks a text into lines below a path.
func indented(text string) string {
	const indent = "       "
	var b strings.Builder
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > columns-len(indent) {
			b.WriteString(indent + line + "\n")
			line = "  " + word
			continue
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return b.String() + indent + line + "\n"
}
