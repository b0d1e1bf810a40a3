package flannel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseSave reads the output of iptables-save, with or without counters (-c), of one backend and family. Every chain that
// it names is present; a chain of Looked that it does not name is there as absent. An error names the line.
func ParseSave(text string, b Backend, f Family) (*Ruleset, error) {
	p := saveParser{rs: &Ruleset{Backend: b}, family: f, index: map[ChainID]int{}}
	line := 1
	for text != "" {
		one, rest := cutLine(text)
		if err := p.line(strings.TrimRight(one, "\r\n")); err != nil {
			return nil, fmt.Errorf("iptables-save line %d: %w", line, err)
		}
		line += strings.Count(text[:len(text)-len(rest)], "\n")
		text = rest
	}
	if p.table != "" {
		return nil, fmt.Errorf("iptables-save line %d: table %s ends without COMMIT", line, brief(p.table))
	}
	p.addAbsent()
	slices.SortFunc(p.rs.Chains, func(a, b Chain) int { return a.ID.Compare(b.ID) })
	return p.rs, nil
}

// cutLine cuts at the end of a line, which a newline within a quoted comment is not.
func cutLine(text string) (string, string) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\n' && !quoted:
			return text[:i], text[i+1:]
		case text[0] == '#':
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted && i > 0 && blank(text[i-1])
		}
	}
	return text, ""
}

type saveParser struct {
	rs     *Ruleset
	family Family
	table  string
	index  map[ChainID]int
}

func (p *saveParser) line(s string) error {
	s = strings.Trim(s, " \t")
	switch {
	case s == "" || s[0] == '#':
		return nil
	case s[0] == '*':
		return p.startTable(s[1:])
	case p.table == "":
		return fmt.Errorf("%s stands outside of a table", shown(s))
	case s == "COMMIT":
		p.table = ""
		return nil
	case s[0] == ':':
		return p.chain(s[1:])
	}
	return p.rule(s)
}

func (p *saveParser) startTable(name string) error {
	if p.table != "" {
		return fmt.Errorf("table %s begins before table %s ended", brief(name), brief(p.table))
	}
	if name == "" {
		return fmt.Errorf("table without a name")
	}
	p.table = name
	if id := (TableID{p.rs.Backend, p.family, name}); !p.rs.HasTable(id) {
		p.rs.Tables = append(p.rs.Tables, id)
	}
	return nil
}

// chain reads "NAME POLICY [packets:bytes]"; a chain with the policy "-" is no base chain.
func (p *saveParser) chain(s string) error {
	fields := strings.Fields(s)
	if len(fields) < 2 {
		return fmt.Errorf("chain %s has no policy", shown(s))
	}
	if len(fields) > 2 {
		if _, err := parseCounter(fields[2]); err != nil {
			return err
		}
	}
	id := p.id(fields[0])
	if _, again := p.index[id]; again {
		return fmt.Errorf("chain %s is declared twice", brief(fields[0]))
	}
	p.index[id] = len(p.rs.Chains)
	p.rs.Chains = append(p.rs.Chains, Chain{ID: id, Present: true, Base: saveBase(id, fields[1])})
	return nil
}

func (p *saveParser) id(chain string) ChainID { return ChainID{p.rs.Backend, p.family, p.table, chain} }

// saveBase is what the kernel knows of a built-in chain of iptables.
func saveBase(id ChainID, policy string) *BaseChain {
	if policy == "-" {
		return nil
	}
	base := BaseChain{Type: "filter", Hook: strings.ToLower(id.Name), Policy: strings.ToLower(policy)}
	switch id.Table {
	case "raw":
		base.Priority = -300
	case "mangle":
		base.Priority = -150
		if id.Name == "OUTPUT" {
			base.Type = "route"
		}
	case "security":
		base.Priority = 50
	case TableNat:
		base.Type, base.Priority = "nat", 100
		if id.Name == "PREROUTING" || id.Name == "OUTPUT" {
			base.Priority = -100
		}
	}
	return &base
}

// rule reads "[packets:bytes] -A CHAIN RULE".
func (p *saveParser) rule(s string) error {
	var e Entry
	if s[0] == '[' {
		counter, rest, _ := strings.Cut(s, " ")
		c, err := parseCounter(counter)
		if err != nil {
			return err
		}
		e.Counter, e.Counted, s = c, true, rest
	}
	chain, ok := strings.CutPrefix(s, "-A ")
	if !ok {
		return fmt.Errorf("%s is no rule", shown(s))
	}
	name, text, _ := strings.Cut(chain, " ")
	at, ok := p.index[p.id(name)]
	if !ok {
		return fmt.Errorf("chain %s is not declared", brief(name))
	}
	r, err := ParseRule(text)
	if err != nil {
		return err
	}
	e.Rule = r
	p.rs.Chains[at].Entries = append(p.rs.Chains[at].Entries, e)
	return nil
}

func parseCounter(s string) (Counter, error) {
	inner, ok := strings.CutPrefix(s, "[")
	inner, ok2 := strings.CutSuffix(inner, "]")
	packets, bytes, ok3 := strings.Cut(inner, ":")
	p, err1 := strconv.ParseUint(packets, 10, 64)
	b, err2 := strconv.ParseUint(bytes, 10, 64)
	if !ok || !ok2 || !ok3 || err1 != nil || err2 != nil {
		return Counter{}, fmt.Errorf("%s is no counter [packets:bytes]", shown(s))
	}
	return Counter{Packets: p, Bytes: b}, nil
}

func (p *saveParser) addAbsent() {
	for _, id := range Looked(p.rs.Backend) {
		if _, there := p.index[id]; !there && id.Family == p.family {
			p.rs.Chains = append(p.rs.Chains, Chain{ID: id})
		}
	}
}
