package remediate

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
)

// RestoreText gives the transaction of one table as iptables-restore --noflush takes it: new chains, then what goes, then what
// comes, then chains that go. What goes is named by its words, so that a program which does not keep the lock cannot make us
// hit a rule of others; only a copy of a rule that stays has to be named by its number.
func (p Plan) RestoreText(t flannel.TableID) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t.Name)
	edits := p.Of(t)
	for _, e := range edits {
		if e.Create && !e.Shared {
			fmt.Fprintf(&b, ":%s - [0:0]\n", e.Chain.Name)
		}
	}
	for _, e := range edits {
		stays := map[string]bool{}
		for _, l := range e.Lines {
			stays[l.Rule.String()] = stays[l.Rule.String()] || l.Mark == Keep
		}
		for _, l := range slices.Backward(e.Lines) {
			if l.Mark == Remove && stays[l.Rule.String()] {
				fmt.Fprintf(&b, "-D %s %d\n", e.Chain.Name, l.At)
			}
		}
		for _, l := range e.Lines {
			if l.Mark == Remove && !stays[l.Rule.String()] {
				fmt.Fprintf(&b, "-D %s %s\n", e.Chain.Name, l.Rule)
			}
		}
		at := 0
		for _, l := range e.Lines {
			switch l.Mark {
			case Keep:
				at++
			case Add:
				at++
				fmt.Fprintf(&b, "-I %s %d %s\n", e.Chain.Name, at, l.Rule)
			}
		}
	}
	for _, e := range edits {
		if e.Delete && !e.Create {
			fmt.Fprintf(&b, "-X %s\n", e.Chain.Name)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// Script gives shell commands that do the same by hand, without flanwatch and without its checks. Rules that go are named by
// their words: a number or handle that has changed meanwhile would hit a rule of somebody else.
func (p Plan) Script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#!/bin/sh\n# %s\n# flanwatch plan %s, by hand. Save first: iptables-save, ip6tables-save, nft list ruleset.\nset -e\n",
		flannel.Printable(p.Title), p.ID)
	for _, backend := range p.Backends() {
		for _, t := range p.TablesOf(backend) {
			if backend == flannel.Nftables {
				fmt.Fprintf(&b, "nft -f - <<'EOF'\n%sEOF\n", p.nftText(t))
				continue
			}
			fmt.Fprintf(&b, "%s-restore --noflush <<'EOF'\n%sEOF\n", Program(backend, t.Family), p.handText(t))
		}
	}
	return b.String() + p.flowScript()
}

// Program is the name of the iptables of a backend and family.
func Program(b flannel.Backend, f flannel.Family) string {
	name := "iptables"
	if f == flannel.IPv6 {
		name = "ip6tables"
	}
	return name + strings.TrimPrefix(b.String(), "iptables")
}

// handText is RestoreText with rules named by their words.
func (p Plan) handText(t flannel.TableID) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t.Name)
	edits := p.Of(t)
	for i := range edits {
		edits[i].Lines = byWords(edits[i].Lines)
	}
	for _, e := range edits {
		if !e.Shared && (e.Create || e.Count(Keep) == 0) {
			fmt.Fprintf(&b, ":%s - [0:0]\n", e.Chain.Name)
		}
	}
	for _, e := range edits {
		if e.Shared || e.Count(Keep) > 0 {
			for _, l := range e.Lines {
				if l.Mark == Remove {
					fmt.Fprintf(&b, "-D %s %s\n", e.Chain.Name, l.Rule)
				}
			}
		}
		for i, l := range e.Lines {
			if l.Mark == Add {
				b.WriteString(e.addCommand(i))
			}
		}
		if e.Delete {
			fmt.Fprintf(&b, "-X %s\n", e.Chain.Name)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// byWords makes lines that can be carried out by words alone. Words hit the first of several copies of a rule, whichever of
// them is to go: where one stays, all of them go, and that one comes again in its place.
func byWords(lines []Line) []Line {
	gone := map[string]bool{}
	for _, l := range lines {
		if l.Mark == Remove {
			gone[l.Rule.String()] = true
		}
	}
	var out []Line
	for _, l := range lines {
		if l.Mark != Keep || !gone[l.Rule.String()] {
			out = append(out, l)
			continue
		}
		out = append(out, Line{Mark: Remove, At: l.At, Rule: l.Rule}, Line{Mark: Add, Rule: l.Rule})
	}
	return out
}

// addCommand appends where only new rules follow, and inserts by number elsewhere.
func (e Edit) addCommand(i int) string {
	if !slices.ContainsFunc(e.Lines[i:], func(l Line) bool { return l.Mark == Keep }) {
		return fmt.Sprintf("-A %s %s\n", e.Chain.Name, e.Lines[i].Rule)
	}
	at := 1
	for _, l := range e.Lines[:i] {
		if l.Mark != Remove {
			at++
		}
	}
	return fmt.Sprintf("-I %s %d %s\n", e.Chain.Name, at, e.Lines[i].Rule)
}

// nftText is what a plan does to a native table, for nft -f.
func (p Plan) nftText(t flannel.TableID) string {
	name := t.Family.String() + " " + t.Name
	for _, te := range p.Tables {
		if te.Table == t && te.Delete {
			return "delete table " + name + "\n"
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "add table %s%s\n", name, p.tableComment(t))
	for _, e := range p.Of(t) {
		if e.Delete {
			fmt.Fprintf(&b, "flush chain %s %s\ndelete chain %s %s\n", name, e.Chain.Name, name, e.Chain.Name)
		}
		if e.Delete && !e.Create {
			continue
		}
		if e.Create && e.Base != nil {
			fmt.Fprintf(&b, "add chain %s %s { type %s hook %s priority %d; policy %s; %s}\n",
				name, e.Chain.Name, e.Base.Type, e.Base.Hook, e.Base.Priority, e.Base.Policy, comment(e.Userdata))
		}
		if !e.Create {
			fmt.Fprintf(&b, "flush chain %s %s\n", name, e.Chain.Name)
		}
		for _, r := range e.After() {
			fmt.Fprintf(&b, "add rule %s %s %s\n", name, e.Chain.Name, r.Nft(t.Family))
		}
	}
	return b.String()
}

func (p Plan) tableComment(t flannel.TableID) string {
	i := slices.IndexFunc(p.Tables, func(te TableEdit) bool { return te.Table == t && te.Create })
	if i < 0 {
		return ""
	}
	if c := comment(p.Tables[i].Userdata); c != "" {
		return " { " + c + "}"
	}
	return ""
}

// comment finds the comment in the user data of a table or chain, which nft writes as type 0, length and text with a NUL at
// its end.
func comment(userdata []byte) string {
	for len(userdata) >= 2 && len(userdata) >= 2+int(userdata[1]) {
		kind, text := userdata[0], strings.TrimRight(string(userdata[2:2+int(userdata[1])]), "\x00")
		if kind == 0 && text == flannel.Printable(text) && !strings.ContainsAny(text, "\"\\") {
			return fmt.Sprintf("comment \"%s\"; ", text)
		}
		userdata = userdata[2+int(userdata[1]):]
	}
	return ""
}
