package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"flanwatch/assets"
	"flanwatch/flannel"
)

// Scenario is a story on the lab's node, read from a file of package assets.
//
// The file has one step a line, in words split at blanks except within double quotes; # starts a comment line. Steps up to
// "ready" set the node up, those behind it are played.
//
//	title TEXT                      what the story is about
//	on NAME                         sets up as another scenario does
//	say TEXT                        a caption
//	wait DURATION
//	flanneld VERSION MODE ARGS...   starts flanneld in MODE iptables, nftables or canal, and waits until it is ready
//	stop SIGNAL                     ends flanneld by TERM or KILL and waits for it
//	start PROGRAM ARGS...           starts a program that stays
//	run PROGRAM ARGS...             runs a program to its end
//	feed FILE PROGRAM ARGS...       the same with a file of the scenarios' folder as standard input
//	tool FILE PROGRAM ARGS...       the same with a real program of the machine, where it is installed
//	copy FILE PATH                  gives the node a file
//	remove PATH                     deletes a file of the node
//	migrate                         replaces Flannel's overlay and pod addresses by Calico's
//	play NAME                       plays another scenario's story
//	again                           starts over behind "ready"
//	leaves CHAIN COUNT              says how many rules there are at the end; -1 says that there is no such chain
type Scenario struct {
	Name   string
	Title  string
	setUp  []step
	story  []step
	leaves map[flannel.ChainID]int
}

// step is one line: a verb and its words.
type step struct {
	verb  string
	words []string
}

// verbs gives the least number of words of each step.
var verbs = map[string]int{
	"say": 1, "wait": 1, "flanneld": 3, "stop": 1, "start": 1, "run": 1, "feed": 2, "tool": 2, "copy": 2,
	"remove": 1, "migrate": 0, "on": 1, "play": 1, "again": 0,
}

// Tour is the scenario that plays the others one after the other.
const Tour = "tour"

const folder, suffix = "scenarios/", ".scenario"

// Scenarios lists the scenarios by name.
func Scenarios() []string {
	files, err := fs.Glob(assets.Scenarios, folder+"*"+suffix)
	if err != nil {
		return nil // the pattern is well-formed
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(f, folder), suffix))
	}
	return names
}

// LoadScenario reads a scenario of package assets, and what it plays of others.
func LoadScenario(name string) (*Scenario, error) {
	text, err := fs.ReadFile(assets.Scenarios, folder+name+suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no scenario %q: there are %s", name, strings.Join(Scenarios(), ", "))
	}
	if err != nil {
		return nil, err
	}
	s, err := parseScenario(name, string(text))
	if err != nil {
		return nil, err
	}
	return s, s.include()
}

// include replaces "play NAME" by that scenario's story, and "on NAME" by its set-up.
func (s *Scenario) include() (err error) {
	set, err := replace(s.setUp, "on", func(o *Scenario) []step { return o.setUp })
	if err != nil {
		return err
	}
	story, err := replace(s.story, "play", func(o *Scenario) []step { return o.story })
	s.setUp, s.story = set, story
	return err
}

func replace(steps []step, verb string, part func(*Scenario) []step) ([]step, error) {
	var out []step
	for _, st := range steps {
		if st.verb != verb {
			out = append(out, st)
			continue
		}
		other, err := LoadScenario(st.words[0])
		if err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(slices.Clone(part(other)), func(st step) bool { return st.verb == "again" })...)
	}
	return out, nil
}

func parseScenario(name, text string) (*Scenario, error) {
	s := &Scenario{Name: name, leaves: map[flannel.ChainID]int{}}
	ready := false
	for i, line := range strings.Split(text, "\n") {
		words, err := shellWords(line)
		if err == nil && len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			if words[0] == "ready" {
				ready = true
				continue
			}
			err = s.line(words, ready)
		}
		if err != nil {
			return nil, fmt.Errorf("scenario %s line %d: %w", name, i+1, err)
		}
	}
	if !ready {
		return nil, fmt.Errorf(`scenario %s: has no line "ready"`, name)
	}
	return s, nil
}

func (s *Scenario) line(words []string, ready bool) error {
	st := step{words[0], words[1:]}
	switch st.verb {
	case "title":
		s.Title = strings.Join(st.words, " ")
		return nil
	case "leaves":
		return s.addEnd(st.words)
	}
	least, ok := verbs[st.verb]
	if !ok {
		return fmt.Errorf("unknown step %q", st.verb)
	}
	if len(st.words) < least {
		return fmt.Errorf("%s needs %d words, has %d", st.verb, least, len(st.words))
	}
	if st.verb == "wait" {
		if _, err := time.ParseDuration(st.words[0]); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
	}
	if ready {
		s.story = append(s.story, st)
	} else {
		s.setUp = append(s.setUp, st)
	}
	return nil
}

// addEnd reads "BACKEND FAMILY TABLE CHAIN COUNT".
func (s *Scenario) addEnd(words []string) error {
	if len(words) != 5 {
		return errors.New("leaves needs backend, family, table, chain and count")
	}
	id := flannel.ChainID{Table: words[2], Name: words[3]}
	count, err := strconv.Atoi(words[4])
	if err := errors.Join(id.Backend.UnmarshalText([]byte(words[0])), id.Family.UnmarshalText([]byte(words[1])), err); err != nil {
		return err
	}
	s.leaves[id] = count
	return nil
}

// shellWords splits a command at blanks, except within double quotes.
func shellWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, inQuotes := false, false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	for _, r := range line {
		switch {
		case r == '"':
			inQuotes, inWord = !inQuotes, true
		case !inQuotes && (r == ' ' || r == '\t'):
			end()
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if inQuotes {
		return nil, fmt.Errorf("%s: quote not closed", line)
	}
	end()
	return words, nil
}
