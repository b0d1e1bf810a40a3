package flannel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Nft gives the rule as `nft list` prints it.
func (r Rule) Nft(f Family) string {
	var parts []string
	comment := ""
	for _, m := range r.Matches {
		if m.Kind == MatchComment {
			comment = m.Text
			continue
		}
		if r.impliedProtocol(m) {
			continue // "tcp dport" says it
		}
		if s := m.nft(f); s != "" {
			parts = append(parts, s)
		}
	}
	if t := r.Target.nft(f); t != "" {
		parts = append(parts, t)
	}
	if comment != "" {
		parts = append(parts, `comment "`+comment+`"`)
	}
	return strings.Join(parts, " ")
}

// impliedProtocol tells whether the match is the protocol that a later condition on its ports names, as nft leaves it out
// then.
func (r Rule) impliedProtocol(m Match) bool {
	return m.Kind == MatchProtocol && !m.Not && slices.ContainsFunc(r.Matches, func(n Match) bool {
		return n.Kind == MatchExtension && n.Extension() == m.Text && n.Text != m.Text
	})
}

func (m Match) nft(f Family) string {
	not := ""
	if m.Not {
		not = "!= "
	}
	switch m.Kind {
	case MatchSource:
		return f.String() + " saddr " + not + nftPrefix(m.Prefix)
	case MatchDestination:
		return f.String() + " daddr " + not + nftPrefix(m.Prefix)
	case MatchIn:
		return "iifname " + not + nftInterface(m.Text)
	case MatchOut:
		return "oifname " + not + nftInterface(m.Text)
	case MatchProtocol:
		return "meta l4proto " + not + m.Text
	case MatchMark:
		return m.nftMark(not)
	case MatchExtension:
		return m.nftExtension(f)
	}
	return m.Text
}

func (m Match) nftMark(not string) string {
	if m.Mask == allOnes {
		return fmt.Sprintf("meta mark %s0x%08x", not, m.Value)
	}
	if not == "" {
		not = "== "
	}
	return fmt.Sprintf("meta mark & 0x%08x %s0x%08x", m.Mask, not, m.Value)
}

// nftPrefix leaves out the length of a single address, as nft does.
func nftPrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func nftInterface(name string) string {
	if base, wild := strings.CutSuffix(name, "+"); wild {
		name = base + "*"
	}
	return `"` + name + `"`
}

func (t Target) nft(f Family) string {
	switch t.Kind {
	case TargetAccept:
		return "accept"
	case TargetDrop:
		return "drop"
	case TargetReturn:
		return "return"
	case TargetJump:
		return "jump " + t.Chain
	case TargetGoto:
		return "goto " + t.Chain
	case TargetMasquerade:
		return "masquerade" + t.nftPorts() + t.nftFlags()
	case TargetMap:
		name, fields := t.Map()
		return nftFields(f, fields) + " vmap @" + name
	}
	return t.nftAction()
}

func (t Target) nftFlags() string {
	switch {
	case t.Random && t.RandomFully:
		return " random,fully-random"
	case t.Random:
		return " random"
	case t.RandomFully:
		return " fully-random"
	}
	return ""
}

func (t Target) nftPorts() string {
	if ports, ok := strings.CutPrefix(t.Text, "--to-ports "); ok {
		return " to :" + ports
	}
	return ""
}

// nftExtension gives the words of nft for what native rules hold of an extension, those of iptables for the rest.
func (m Match) nftExtension(f Family) string {
	var parts []string
	for o := range m.Options() {
		word, known := m.nftOption(f, o)
		if !known {
			return "-m " + m.Text
		}
		if word != "" {
			parts = append(parts, word)
		}
	}
	return strings.Join(parts, " ")
}

func (m Match) nftOption(f Family, o Option) (string, bool) {
	name := m.Extension()
	value := nftList(o)
	switch name + " " + o.Name {
	case "tcp --sport", "udp --sport":
		return name + " sport " + value, true
	case "tcp --dport", "udp --dport":
		return name + " dport " + value, true
	case "multiport --sports":
		return "th sport " + value, true
	case "multiport --dports":
		return "th dport " + value, true
	case "conntrack --ctstate":
		return "ct state " + nftBits(o), true
	case "conntrack --ctstatus":
		return "ct status " + strings.ReplaceAll(nftBits(o), "_", "-"), true
	case "connmark --mark":
		mark := ParseMasked(o.Value)
		m := Match{Kind: MatchMark, Not: o.Not, Value: mark.Value, Mask: mark.Mask}
		return "ct" + strings.TrimPrefix(m.nft(f), "meta"), true
	case "addrtype --src-type":
		return "fib saddr" + m.nftLimit() + " type " + strings.ToLower(value), true
	case "addrtype --dst-type":
		return "fib daddr" + m.nftLimit() + " type " + strings.ToLower(value), true
	case "addrtype --limit-iface-in", "addrtype --limit-iface-out":
		return "", true
	case "set --match-set":
		return nftSet(f, o), true
	case "family --is":
		return "meta nfproto " + value, true
	}
	return "", false
}

func (m Match) nftLimit() string {
	switch {
	case strings.Contains(m.Text, "--limit-iface-in"):
		return " . iif"
	case strings.Contains(m.Text, "--limit-iface-out"):
		return " . oif"
	}
	return ""
}

// nftBits writes names of bits, of which any one will do.
func nftBits(o Option) string {
	names := strings.Split(strings.ToLower(o.Value), ",")
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(nftStates[a], nftStates[b]) })
	return flag(o.Not, "!= ") + strings.Join(names, ",")
}

// nftStates is the order in which nft prints states.
var nftStates = map[string]int{"invalid": 1, "established": 2, "related": 3, "new": 4, "untracked": 5}

// nftList writes a value, or several in braces, with nft's sign of a range.
func nftList(o Option) string {
	value := strings.ReplaceAll(o.Value, ":", "-")
	if strings.Contains(value, ",") {
		value = "{ " + strings.ReplaceAll(value, ",", ", ") + " }"
	}
	if o.Not {
		return "!= " + value
	}
	return value
}

var setFields = map[string]string{
	"sport": "th sport", "dport": "th dport", "proto": "meta l4proto", "in": "iifname", "out": "oifname", "mark": "meta mark",
	"state": "ct state", "other": "(not understood)",
}

func nftSet(f Family, o Option) string {
	set, fields, _ := strings.Cut(o.Value, " ")
	return nftFields(f, fields) + flag(o.Not, " !=") + " " + set
}

// nftFields writes the parts of a packet that a key is made of.
func nftFields(f Family, fields string) string {
	var parts []string
	for field := range strings.SplitSeq(fields, ",") {
		switch field {
		case "src":
			parts = append(parts, f.String()+" saddr")
		case "dst":
			parts = append(parts, f.String()+" daddr")
		default:
			parts = append(parts, setFields[field])
		}
	}
	return strings.Join(parts, " . ")
}

// nftAction gives the words of nft for the targets that keep a Text.
func (t Target) nftAction() string {
	first := Option{}
	for o := range t.Options() {
		first = o
		break
	}
	var random Target
	for o := range t.Options() {
		random.Random = random.Random || o.Name == "--random"
		random.RandomFully = random.RandomFully || o.Name == "--random-fully"
	}
	switch t.Kind {
	case TargetReject:
		return "reject" + flag(first.Value != "" && !strings.HasSuffix(first.Value, "-port-unreachable"), " with "+rejectWords.Replace(first.Value))
	case TargetSNAT:
		return "snat to " + first.Value + random.nftFlags()
	case TargetDNAT:
		return "dnat to " + first.Value + random.nftFlags()
	case TargetMark:
		return nftSetMark(ParseMasked(first.Value))
	case TargetNotrack:
		return "notrack"
	case TargetPass:
		if group, ok := strings.CutPrefix(t.Text, "NFLOG --nflog-group "); ok {
			return "log group " + group
		}
	case TargetOpaque:
		return t.Text
	}
	return strings.ToLower(t.Extension()) + strings.TrimPrefix(t.Text, t.Extension())
}

// Map gives the name of the map of a TargetMap, and the parts of a packet that its keys are made of: "src,proto,dport".
func (t Target) Map() (name, fields string) {
	for o := range t.Options() {
		name, fields, _ = strings.Cut(o.Value, " ")
	}
	return strings.TrimPrefix(name, "@"), fields
}

// rejectWords turns iptables' words for an answer into those of nft.
var rejectWords = strings.NewReplacer("tcp-reset", "tcp reset", "icmp6-adm-prohibited", "icmpv6 admin-prohibited", "icmp6-", "icmpv6 ",
	"icmp-", "icmp ")

// nftSetMark writes the order that --set-xmark gives: clear the bits of the mask, then flip those of the value.
func nftSetMark(m Masked) string {
	switch {
	case m.Mask == allOnes:
		return fmt.Sprintf("meta mark set 0x%08x", m.Value)
	case m.Mask == m.Value:
		return fmt.Sprintf("meta mark set meta mark | 0x%08x", m.Value)
	case m.Value == 0:
		return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^m.Mask)
	}
	return fmt.Sprintf("meta mark set meta mark & 0x%08x ^ 0x%08x", ^m.Mask, m.Value)
}
