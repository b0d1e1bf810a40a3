package lab

import (
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
)

func TestEveryScenarioIsReadable(t *testing.T) {
	names := Scenarios()
	for _, want := range []string{
		"backend-split", "calico-leftover", "canal", "flush", "healthy", "native", "startup-window", "teardown", Tour,
	} {
		if !slices.Contains(names, want) {
			t.Errorf("no scenario %q among %v", want, names)
		}
	}
	for _, name := range names {
		s, err := LoadScenario(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if s.Title == "" || len(s.setUp) == 0 || len(s.story) == 0 || len(s.leaves) == 0 {
			t.Errorf("%s lacks a title, a set-up, a story or its end", name)
		}
		for _, st := range append(slices.Clone(s.setUp), s.story...) {
			if st.verb == "on" || st.verb == "play" {
				t.Errorf("%s: %q is not replaced", name, st)
			}
		}
	}
}

func TestAnUnknownScenarioIsRefusedWithTheNamesThatThereAre(t *testing.T) {
	_, err := LoadScenario("../scenarios/healthy")
	if err == nil || !strings.Contains(err.Error(), "flush") {
		t.Errorf("error is %v", err)
	}
}

func TestAScenarioIsReadInTwoParts(t *testing.T) {
	s, err := parseScenario("x", `
# a comment
title "A title"
feed some.rules iptables-restore --noflush
ready
say "two  words" more
wait 300ms
leaves iptables-nft ip6 nat FLANNEL-POSTRTG 6
`)
	if err != nil {
		t.Fatal(err)
	}
	if s.Title != "A title" || len(s.setUp) != 1 || len(s.story) != 2 {
		t.Errorf("read as %+v", s)
	}
	if got := s.story[0]; got.verb != "say" || !slices.Equal(got.words, []string{"two  words", "more"}) {
		t.Errorf("the first step is %q", got)
	}
	id := flannel.MasqChain(flannel.IptablesNft, flannel.IPv6)
	if got, ok := s.leaves[id]; !ok || got != 6 {
		t.Errorf("leaves %v", s.leaves)
	}
}

func TestAFaultInAScenarioIsNamedWithItsLine(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"an unknown step", "ready\nlaugh", `line 2: unknown step "laugh"`},
		{"too few words", "ready\n\nfeed file", "line 3: feed needs 2 words, has 1"},
		{"no duration", "wait long\nready", "line 1: wait: time: invalid duration"},
		{"an open quote", `say "x`, "line 1: "},
		{"an end without count", "leaves iptables-nft ip nat X", "line 1: leaves needs"},
		{"an unknown backend", "leaves ebtables ip nat X 1", `line 1: unmarshal flannel.Backend: unknown name "ebtables"`},
		{"an end that is no number", "leaves iptables-nft ip nat X many", "line 1: strconv.Atoi"},
		{"no set-up", "say hello", `has no line "ready"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseScenario("x", tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzParseScenario(f *testing.F) {
	f.Add("title x\nready\nsay \"a b\" c\nwait 1s\nagain\n")
	f.Add("leaves iptables-nft ip nat C -1\nready")
	f.Add("\"")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseScenario("x", text)
		if err != nil {
			return
		}
		for _, st := range append(s.setUp, s.story...) {
			if least, ok := verbs[st.verb]; !ok || len(st.words) < least {
				t.Errorf("a faulty step is taken: %q", st)
			}
		}
	})
}
