package flannel

import "strings"

// action is a target of iptables with options.
type action struct {
	kind     TargetKind
	options  map[string]check // nil where any will do, since none of them matters
	required string           // an option without which the target is not understood
}

var natFlags = map[string]check{"--random": {}, "--random-fully": {}, "--persistent": {}}

// actions lists the targets that are understood beside verdicts and MASQUERADE. Those of TargetPass note something or
// change what decides nothing here: the packet goes on to the next rule.
var actions = map[string]action{
	"REJECT":    {TargetReject, map[string]check{"--reject-with": {isName}}, ""},
	"SNAT":      {TargetSNAT, withNat("--to-source", isNatAddress), "--to-source"},
	"DNAT":      {TargetDNAT, withNat("--to-destination", isNatAddress), "--to-destination"},
	"REDIRECT":  {TargetRedirect, withNat("--to-ports", isNatPorts), ""},
	"MARK":      {TargetMark, map[string]check{"--set-xmark": {isMasked}}, "--set-xmark"},
	"CONNMARK":  {TargetConnmark, connmarkOptions, ""},
	"NOTRACK":   {TargetNotrack, map[string]check{}, ""},
	"TTL":       {TargetTTL, map[string]check{"--ttl-set": {isByte}, "--ttl-dec": {isByte}, "--ttl-inc": {isByte}}, ""},
	"HL":        {TargetTTL, map[string]check{"--hl-set": {isByte}, "--hl-dec": {isByte}, "--hl-inc": {isByte}}, ""},
	"VMAP":      {TargetMap, map[string]check{"--map": {isName, isSetFields}}, "--map"}, // no target of iptables: nft's vmap
	"AUDIT":     {kind: TargetPass},
	"CHECKSUM":  {kind: TargetPass},
	"CLASSIFY":  {kind: TargetPass},
	"DSCP":      {kind: TargetPass},
	"ECN":       {kind: TargetPass},
	"LOG":       {kind: TargetPass},
	"NFLOG":     {kind: TargetPass},
	"SET":       {kind: TargetPass},
	"TCPMSS":    {kind: TargetPass},
	"TOS":       {kind: TargetPass},
	"TRACE":     {kind: TargetPass},
	"ULOG":      {kind: TargetPass},
	"RATEEST":   {kind: TargetPass},
	"IDLETIMER": {kind: TargetPass},
	"LED":       {kind: TargetPass},
}

var connmarkOptions = map[string]check{
	"--set-xmark": {isMasked}, "--save-mark": {}, "--restore-mark": {}, "--nfmask": {isMasked}, "--ctmask": {isMasked},
}

func withNat(option string, proper func(string) bool) map[string]check {
	options := map[string]check{option: {proper}}
	for name, c := range natFlags {
		options[name] = c
	}
	return options
}

func isNatPorts(s string) bool { return s != "" && isNatAddress(":"+s) }

func isByte(s string) bool { return isPort(s) && len(s) <= 3 }

// newAction reads "-j NAME OPTIONS" of a target that is listed.
func newAction(words []word) (Target, bool) {
	name := words[1]
	if name.quoted {
		return Target{}, false
	}
	if name.text == "CT" {
		return trackingTarget(words), true
	}
	a, ok := actions[name.text]
	if !ok {
		return Target{}, false
	}
	t := Target{Kind: a.kind, Text: joined(words[1:])}
	if a.options == nil {
		return t, true
	}
	n, ok := takeOptions(words, 2, a.options)
	return t, ok && n == len(words) && !strings.Contains(t.Text, " ! ") && strings.Contains(t.Text, a.required)
}

// trackingTarget reads CT, which takes a packet out of connection tracking or sets how it is tracked.
func trackingTarget(words []word) Target {
	t := Target{Kind: TargetPass, Text: joined(words[1:])}
	for _, w := range words[2:] {
		if w.is("--notrack") {
			t.Kind = TargetNotrack
		}
	}
	return t
}
