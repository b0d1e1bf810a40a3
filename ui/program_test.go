package ui

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"

	tea "charm.land/bubbletea/v2"
)

// keyNamed is a key that is pressed, as Bubble Tea names it.
func keyNamed(name string) tea.KeyPressMsg {
	codes := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "pgdown": tea.KeyPgDown, "home": tea.KeyHome}
	if c, ok := codes[name]; ok {
		return tea.KeyPressMsg{Code: c}
	}
	r, _ := utf8.DecodeRuneInString(name)
	return tea.KeyPressMsg{Code: r, Text: name}
}

// selectedRow is the row with the mark of the selection.
func selectedRow(s string) string {
	for l := range strings.Lines(s) {
		if strings.Contains(l, "▸") {
			return l
		}
	}
	return ""
}

func (tt *terminal) selects(words ...string) {
	tt.t.Helper()
	tt.until("selection of "+strings.Join(words, " "), func(s string) bool {
		row := selectedRow(s)
		for _, w := range words {
			if !strings.Contains(row, w) {
				return false
			}
		}
		return true
	})
}

// keyTests says of each key what is seen when it is pressed on a node whose v4 masquerade chain is empty.
var keyTests = map[string]func(t *testing.T, tt *terminal){
	"?":  func(t *testing.T, tt *terminal) { tt.keys("?"); tt.shows("Help"); tt.keys("?"); tt.hides("Help") },
	"f1": func(t *testing.T, tt *terminal) { tt.keys("\x1bOP"); tt.shows("previous panel") },
	"/": func(t *testing.T, tt *terminal) {
		tt.keys("/v6 fwd")
		tt.shows("Chains 1 of 4 /v6 fwd")
		tt.keys("\r")
		tt.shows("? help")
	},
	"v": func(t *testing.T, tt *terminal) {
		tt.keys("v")
		tt.shows("Paths 0")
		tt.keys("v")
		tt.shows("Base chains 0")
		tt.keys("v")
		tt.shows("Timeline")
	},
	"P": func(t *testing.T, tt *terminal) {
		tt.keys("P")
		tt.shows("tcp://ADDRESS:PORT POD")
		tt.keys("nonsense\r")
		tt.shows("want a target and a pod")
		tt.keys("\x15tcp://192.0.2.80:443 10.244.1.5\r")
		tt.shows("one connection is being tried")
	},
	"tab":       func(t *testing.T, tt *terminal) { tt.keys("\t"); tt.keys("\r"); tt.shows("missing") },
	"shift+tab": func(t *testing.T, tt *terminal) { tt.keys("\x1b[Z"); tt.shows("[ closer") },
	"enter":     func(t *testing.T, tt *terminal) { tt.keys("\r"); tt.shows("0/6 wanted ones found") },
	"esc": func(t *testing.T, tt *terminal) {
		tt.keys("\r")
		tt.shows("wanted ones found")
		tt.keys("\x1b")
		tt.shows("Timeline")
		tt.keys("/v6\r")
		tt.shows("2 of 4")
		tt.keys("\x1b")
		tt.shows("Chains 4")
	},
	"[": func(t *testing.T, tt *terminal) { tt.keys("["); tt.shows("2 s a column") },
	"]": func(t *testing.T, tt *terminal) { tt.keys("]"); tt.shows("10 s a column") },
	"p": func(t *testing.T, tt *terminal) { tt.keys("p"); tt.shows("PAUSED"); tt.keys("p"); tt.shows("LIVE") },
	"s": func(t *testing.T, tt *terminal) {
		tt.keys("s")
		tt.shows("sort name ↓")
		tt.keys("s")
		tt.shows("sort rate ↓")
	},
	"S": func(t *testing.T, tt *terminal) { tt.keys("S"); tt.shows("sort severity ↑") },
	"+": func(t *testing.T, tt *terminal) { tt.keys("+"); tt.shows("LIVE 2 s"); tt.asked(2 * time.Second) },
	"-": func(t *testing.T, tt *terminal) {
		tt.keys("-")
		tt.shows("LIVE 0.5 s")
		tt.asked(500 * time.Millisecond)
	},
	"y": func(t *testing.T, tt *terminal) {
		tt.keys("y")
		tt.shows("copied")
		tt.until("OSC 52", func(string) bool {
			tt.mu.Lock()
			defer tt.mu.Unlock()
			return strings.Contains(tt.raw.String(), "\x1b]52;c;")
		})
	},
	"e": func(t *testing.T, tt *terminal) {
		tt.keys("e")
		tt.shows("screen written to")
		files, _ := filepath.Glob(filepath.Join(tt.dir, "flanwatch-*.txt"))
		if len(files) != 1 {
			t.Fatalf("files written: %v", files)
		}
		got, err := os.ReadFile(files[0])
		if err != nil || !strings.Contains(string(got), "FLANNEL-POSTRTG empty") || strings.Contains(string(got), "\x1b") {
			t.Errorf("export: %v\n%s", err, got)
		}
	},
	"t": func(t *testing.T, tt *terminal) {
		tt.keys("t")
		tt.shows("theme light")
		tt.keys("t")
		tt.shows("theme mono")
	},
	"up": func(t *testing.T, tt *terminal) {
		tt.keys("jj")
		tt.selects("v4", "filter")
		tt.keys("\x1b[A")
		tt.selects("v6", "filter")
	},
	"k": func(t *testing.T, tt *terminal) {
		tt.keys("jj")
		tt.selects("v4", "filter")
		tt.keys("k")
		tt.selects("v6", "filter")
	},
	"down": func(t *testing.T, tt *terminal) { tt.keys("\x1b[B"); tt.selects("v6", "filter") },
	"j":    func(t *testing.T, tt *terminal) { tt.keys("j"); tt.selects("v6", "filter") },
	"pgup": func(t *testing.T, tt *terminal) {
		tt.keys("G")
		tt.selects("v6", "nat")
		tt.keys("\x1b[5~")
		tt.selects("v4", "nat")
	},
	"pgdown": func(t *testing.T, tt *terminal) { tt.keys("\x1b[6~"); tt.selects("v6", "nat") },
	"home":   func(t *testing.T, tt *terminal) { tt.keys("jj\x1b[H"); tt.selects("v4", "nat") },
	"g":      func(t *testing.T, tt *terminal) { tt.keys("jjg"); tt.selects("v4", "nat") },
	"end":    func(t *testing.T, tt *terminal) { tt.keys("\x1b[F"); tt.selects("v6", "nat") },
	"G":      func(t *testing.T, tt *terminal) { tt.keys("G"); tt.selects("v6", "nat") },
	"1":      func(t *testing.T, tt *terminal) { tt.keys("1"); tt.hides("Chains"); tt.keys("1"); tt.shows("Chains") },
	"2": func(t *testing.T, tt *terminal) {
		tt.keys("2")
		tt.hides("Rules of")
		tt.keys("2")
		tt.shows("Rules of")
	},
	"3": func(t *testing.T, tt *terminal) {
		tt.keys("3")
		tt.hides("Timeline")
		tt.keys("124")
		tt.shows("the last panel stays")
	},
	"4": func(t *testing.T, tt *terminal) {
		tt.keys("4")
		tt.hides("Conntrack")
		tt.keys("4")
		tt.shows("Conntrack")
	},
	"c": func(t *testing.T, tt *terminal) {
		tt.keys("c")
		tt.shows("reading")
		tt.box.Put(withFlows())
		tt.selects("bare", "10.244.3.17:40000")
		tt.keys("c")
		tt.shows("Timeline")
	},
	"i": func(t *testing.T, tt *terminal) {
		tt.keys("i")
		tt.shows("no incident since")
		tt.box.Put(incidents())
		tt.shows("Closed ones by kind")
		tt.selects("7", "flushed")
		tt.keys("j")
		tt.selects("6", "startup-window")
		tt.keys("i")
		tt.shows("Timeline")
	},
	"f": func(t *testing.T, tt *terminal) {
		tt.keys("f")
		tt.selects("the masquerade chain is empty")
		tt.keys("j\r")
		tt.shows("severity   ▲ warning")
		tt.keys("\x1b")
		tt.selects("REJECT")
		tt.keys("\x1b")
		tt.shows("Timeline")
	},
	"r": func(t *testing.T, tt *terminal) {
		tt.keys("r")
		tt.shows("Confirm reapply")
		tt.keys("\x1b")
		tt.hides("Confirm")
	},
	"u": func(t *testing.T, tt *terminal) { tt.keys("u"); tt.shows("nothing was carried out here") },
	"U": func(t *testing.T, tt *terminal) {
		tt.keys("U")
		tt.shows("No plan was carried out here")
		tt.keys("U")
		tt.shows("Timeline")
	},
	"L": func(t *testing.T, tt *terminal) {
		tt.keys("L")
		tt.shows("0 things, 0 in force")
		tt.box.Put(leftovers())
		tt.selects("chain", "FLANNEL-POSTRTG")
		tt.keys("jj")
		tt.selects("iptables-legacy ip6")
		tt.keys("\x1b")
		tt.shows("Timeline")
	},
	"left": func(t *testing.T, tt *terminal) { tt.lookAtIncident(); tt.keys("\x1b[C\x1b[D"); tt.selects("emptied") },
	"right": func(t *testing.T, tt *terminal) {
		tt.lookAtIncident()
		tt.keys("\x1b[C")
		tt.selects("refilled")
		tt.shows("cursor at +4.886 s")
	},
	"n": func(t *testing.T, tt *terminal) {
		tt.lookAtIncident()
		tt.keys("n")
		tt.shows("no other incident")
		tt.keys("NNn")
		tt.shows("incident 6 of 7")
	},
	"N": func(t *testing.T, tt *terminal) { tt.lookAtIncident(); tt.keys("N"); tt.shows("incident 6 of 7") },
	"ctrl+l": func(t *testing.T, tt *terminal) {
		tt.mu.Lock()
		before := strings.Count(tt.raw.String(), "\x1b[2J")
		tt.mu.Unlock()
		tt.keys("\x0c")
		tt.until("a cleared screen", func(string) bool {
			tt.mu.Lock()
			defer tt.mu.Unlock()
			return strings.Count(tt.raw.String(), "\x1b[2J") > before
		})
		tt.shows("Timeline")
	},
	"q":      func(t *testing.T, tt *terminal) { tt.keys("q"); tt.quits("") },
	"ctrl+c": func(t *testing.T, tt *terminal) { tt.keys("\x03"); tt.quits("") },
	"Q":      func(t *testing.T, tt *terminal) { tt.keys("Q"); tt.quits("FLANNEL-POSTRTG empty") },
}

// lookAtIncident opens the newest incident of a morning with seven.
func (tt *terminal) lookAtIncident() {
	tt.t.Helper()
	tt.box.Put(incidents())
	tt.shows("● OK")
	tt.keys("i\r")
	tt.shows("incident 7 of 7")
}

func (tt *terminal) asked(d time.Duration) {
	tt.t.Helper()
	tt.mu.Lock()
	defer tt.mu.Unlock()
	if !slices.Equal(tt.set, []time.Duration{d}) {
		tt.t.Errorf("intervals asked for: %v, want %v", tt.set, d)
	}
}

func (tt *terminal) quits(last string) {
	tt.t.Helper()
	if err := tt.ends(); err != nil {
		tt.t.Errorf("quit gave %v", err)
	}
	if (last == "") != (tt.last == "") || !strings.Contains(tt.last, last) {
		tt.t.Errorf("last picture: %q", tt.last)
	}
}

func TestEveryKeyDoesWhatHelpSays(t *testing.T) {
	for _, b := range bindings {
		for _, key := range b.keys {
			if b.act == actSuspend || b.mode != 0 {
				continue // stops the process, or means something elsewhere: has a test of its own
			}
			check, ok := keyTests[key]
			if !ok {
				t.Errorf("%s (%s) has no test", key, b.does)
				continue
			}
			t.Run(key, func(t *testing.T) {
				t.Parallel()
				tt := open(t, 100, 30, emptied(), nil)
				tt.shows("FLANNEL-POSTRTG empty")
				check(t, tt)
			})
		}
	}
}

func TestOtherLettersDoNothing(t *testing.T) {
	m := still(t, emptied(), Options{})
	before := m.at(100, 30)
	for _, key := range []string{"h", "l", "x", "5", "0", "space"} {
		if act, ok := actionOf(key, false); ok {
			t.Errorf("%s is bound to %d", key, act)
		}
	}
	if m.at(100, 30) != before {
		t.Error("the picture changed")
	}
}

func TestSelectionSurvivesChainsThatVanishAndReturn(t *testing.T) {
	full := emptied()
	without := *full
	without.Chains = slices.DeleteFunc(slices.Clone(full.Chains), func(c incident.ChainView) bool {
		return c.ID.Family == flannel.IPv4 && c.ID.Table == flannel.TableFilter
	})
	tt := open(t, 100, 30, full, nil)
	tt.shows("Chains 4")
	tt.keys("jj")
	tt.selects("v4", "filter", "FLANNEL-FWD")
	tt.box.Put(&without)
	tt.shows("Chains 3")
	tt.selects("v6", "nat")
	tt.box.Put(full)
	tt.shows("Chains 4")
	tt.selects("v4", "filter", "FLANNEL-FWD")
	none := *full
	none.Chains = nil
	tt.box.Put(&none)
	tt.shows("Chains 0")
	tt.box.Put(full)
	tt.selects("v4", "filter", "FLANNEL-FWD")
}

func TestSelectionStaysWithItsChainWhenTheOrderChanges(t *testing.T) {
	tt := open(t, 100, 30, healthy(), nil)
	tt.shows("OK")
	tt.keys("jjj")
	tt.selects("v6", "filter")
	tt.box.Put(emptied()) // moves v6 filter to second place
	tt.shows("CRITICAL")
	tt.selects("v6", "filter")
}

func TestPauseFreezesThePictureOnly(t *testing.T) {
	tt := open(t, 100, 30, healthy(), nil)
	tt.shows("● OK")
	tt.keys("p")
	tt.shows("PAUSED")
	later := *emptied()
	later.Now = later.Now.Add(12 * time.Second)
	tt.box.Put(&later)
	tt.until("PAUSED behind", regexp.MustCompile(`PAUSED 1[2-5] s behind`).MatchString)
	if s := tt.text(); !strings.Contains(s, "● OK") || strings.Contains(s, "CRITICAL") {
		t.Errorf("the picture moved:\n%s", s)
	}
	tt.keys("j")
	tt.selects("v4", "filter")
	tt.keys("p")
	tt.shows("CRITICAL")
}

func TestStormOfResizesEndsInARightPicture(t *testing.T) {
	m := still(t, emptied(), Options{})
	for i := range 300 {
		w, h := 20+i*37%280, 5+i*13%90
		checkFit(t, fmt.Sprintf("resize %d", i), m.at(w, h), w, h)
	}
	if m.at(100, 30) != still(t, emptied(), Options{}).at(100, 30) {
		t.Error("the picture depends on the sizes before")
	}
}

func TestTheFirstPictureIsThereAtOnce(t *testing.T) {
	begin := time.Now()
	tt := open(t, 100, 30, nil, nil)
	tt.shows("READING")
	if d := time.Since(begin); d > time.Second {
		t.Errorf("first picture after %v", d)
	}
	tt.box.Put(healthy())
	tt.shows("● OK")
}

func TestPasteGoesIntoTheFilterAndNowhereElse(t *testing.T) {
	tt := open(t, 100, 30, emptied(), nil)
	tt.shows("Chains 4")
	tt.keys("\x1b[200~qqq\x1b[201~")
	tt.keys("/")
	tt.keys("\x1b[200~v6 \x1b]0;x\x07 nat\x1b[201~")
	tt.until("filter", func(s string) bool { return regexp.MustCompile(`of 4 /v6`).MatchString(s) })
}

func TestTheFilterCanBeEdited(t *testing.T) {
	tt := open(t, 100, 30, many(), nil)
	tt.shows("Chains 20")
	tt.keys("/v6 natx")
	tt.shows("Chains 0 of 20")
	tt.shows("no chain matches")
	tt.keys("\x7f")
	tt.shows("Chains 5 of 20 /v6 nat")
	tt.keys("\x17")
	tt.shows("Chains 10 of 20 /v6")
	tt.keys("q") // a letter like any other
	tt.shows("/v6 q")
	tt.keys("\x15filter\r")
	tt.shows("Chains 10 of 20 /filter")
}

func TestAnOpenedIncidentStaysWhenAnotherComes(t *testing.T) {
	before := incidents()
	before.Incidents = before.Incidents[:6]
	tt := open(t, 100, 30, before, nil)
	tt.shows("● OK")
	tt.keys("i\r")
	tt.shows("incident 6 of 6")
	tt.box.Put(incidents())
	tt.shows("incident 6 of 7")
	tt.keys("n")
	tt.shows("incident 7 of 7")
	tt.keys("\x1b")
	tt.selects("7", "flushed")
	tt.keys("\x1b")
	tt.shows("Timeline")
}

func TestAnOpenedIncidentIsZoomedScrolledAndCopied(t *testing.T) {
	m := still(t, incidents(), Options{})
	press := func(keys ...string) string {
		for _, k := range keys {
			m.press(keyNamed(k))
		}
		return plain(m.at(80, 24))
	}
	m.at(80, 24)
	if s := press("i", "enter"); strings.Contains(s, "What was lost") || !strings.Contains(s, "pgdn more") {
		t.Errorf("all of it fits:\n%s", s)
	}
	if s := press("pgdown"); !strings.Contains(s, "same cause before: #1 (11:04:00), #3 (11:20:00), #5 (11:36:00)") {
		t.Errorf("scrolling does not reach the end:\n%s", s)
	}
	wide := press("home")
	if closer := press("[", "[", "["); closer == wide || press("]", "]", "]") != wide {
		t.Errorf("zoom does not come back:\n%s", closer)
	}
	report := m.selected()
	for _, want := range []string{
		"incident 7, flushed, critical: v4 nat FLANNEL-POSTRTG was empty for 4.886 s, 12:04:27.118 → 12:04:32.004",
		"iptables -w -t nat -F FLANNEL-POSTRTG", "6 of v4 nat FLANNEL-POSTRTG", "+4.886 s  v4 nat FLANNEL-POSTRTG refilled",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the copy lacks %q:\n%s", want, report)
		}
	}
}

func TestWhatIsWrongNowStandsBesideAnOldIncident(t *testing.T) {
	v := incidents()
	v.Findings = emptied().Findings
	m := still(t, v, Options{})
	m.page = pageIncident
	top := strings.SplitN(plain(m.at(100, 30)), "\n", 3)[1]
	if !strings.Contains(top, "✓ CLOSED") || !strings.HasSuffix(top, "now ✗ CRITICAL") {
		t.Errorf("top line: %s", top)
	}
}

func TestAFindingThatNoLongerHoldsGivesWayToNoOther(t *testing.T) {
	tt := open(t, 100, 30, findings(), nil)
	tt.shows("CRITICAL")
	tt.keys("f\r")
	tt.shows("none of its repairs came")
	v := findings()
	v.Findings = v.Findings[1:]
	tt.box.Put(v)
	tt.shows("chain-empty no longer holds for iptables-nft ip nat FLANNEL-POSTRTG")
}
