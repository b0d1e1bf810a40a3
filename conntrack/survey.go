package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"flanwatch/flannel"
)

// Bounds of a survey. Beyond them it counts and does not list.
const (
	MaxFlows = 1000 // listed flows of each kind
	maxTop   = 20   // listed sources and destinations
)

// Survey is what one look at the whole table found.
type Survey struct {
	Took    time.Duration  `json:"took"`    // time that the look took
	Entries uint64         `json:"entries"` // seen in the look
	Pods    uint64         `json:"pods"`    // of these, of the pod networks
	Kinds   map[Kind]Tally `json:"kinds"`
	Flows   []Sample       `json:"flows"` // at most MaxFlows of each kind

	Sources      []Talker       `json:"sources"` // pods with the most entries, most first
	Destinations []Talker       `json:"destinations"`
	States       map[string]int `json:"states"` // entries by protocol and state

	Masquerade map[flannel.Family]bool `json:"masquerade"` // families in which bare flows were looked for
	Births     Births                  `json:"births,omitzero"`
	Malformed  uint64                  `json:"malformed"` // entries that could not be read
}

// Tally counts the flows of one kind.
type Tally struct {
	Flows   uint64 `json:"flows"`
	Replied uint64 `json:"replied"` // of these, answered: they live on
}

// Sample is one flow that is not as it should be.
type Sample struct {
	Flow Flow   `json:"flow"`
	Kind Kind   `json:"kind"`
	Pod  string `json:"pod"`  // name of the pod concerned, "" if unknown
	From string `json:"from"` // for Arriving: the node from whose tunnel it comes

	Born flannel.Time `json:"born"` // when it was announced, zero where nobody was listening
	Seen flannel.Time `json:"seen"` // since when it has been on the list
}

// Talker is an address and the number of entries it has. Beyond some thousand addresses it is a lower bound.
type Talker struct {
	Addr    netip.Addr `json:"addr"`
	Pod     string     `json:"pod"`
	Entries uint64     `json:"entries"`
}

// Surveyor makes a Survey out of the entries of a dump. One entry costs no allocation, unless it is listed.
type Surveyor struct {
	c       *Classifier
	ages    *Ages // nil where births are not followed
	pods    map[netip.Addr]string
	survey  Survey
	kinds   map[Kind]*Tally
	states  *states
	sources *tops
	dests   *tops
}

// NewSurveyor prepares to look at a node. With ages it finds out which connections are alive whose births were announced.
func NewSurveyor(t Topology, ages *Ages) *Surveyor {
	if ages != nil {
		ages.begin()
	}
	s := &Surveyor{
		c: NewClassifier(t), ages: ages, pods: t.Pods, kinds: map[Kind]*Tally{}, states: new(states),
		sources: new(tops), dests: new(tops), survey: Survey{Masquerade: t.Masquerade},
	}
	for _, k := range Kinds {
		s.kinds[k] = &Tally{}
	}
	return s
}

// Add takes one entry. It keeps nothing of f but copies.
func (s *Surveyor) Add(f *Flow) {
	s.survey.Entries++
	s.states.add(f)
	fromPod := within(s.c.networks, f.Orig.Src)
	if !fromPod && !within(s.c.networks, f.Target()) {
		return
	}
	s.survey.Pods++
	if fromPod {
		s.sources.add(f.Orig.Src)
	}
	s.dests.add(f.Target())
	kind := s.c.Kind(f)
	if kind == Fine {
		return
	}
	tally := s.kinds[kind]
	tally.Flows++
	if f.Replied() {
		tally.Replied++
	}
	if kind == Bare && s.ages != nil {
		s.ages.alive(f)
	}
	if tally.Flows > MaxFlows {
		return
	}
	sample := Sample{Flow: *f, Kind: kind, Pod: s.pods[f.Orig.Src]}
	switch kind {
	case Arriving:
		sample.Pod, sample.From = s.pods[f.Target()], s.c.From(f)
	case Stale:
		sample.Pod = cmp.Or(s.pods[f.Target()], sample.Pod)
	}
	s.survey.Flows = append(s.survey.Flows, sample)
}

// Skip counts an entry that could not be read.
func (s *Surveyor) Skip() { s.survey.Malformed++ }

// Done gives the survey.
func (s *Surveyor) Done(took time.Duration) *Survey {
	v := s.survey
	v.Took = took
	v.Kinds = map[Kind]Tally{}
	for k, t := range s.kinds {
		v.Kinds[k] = *t
	}
	v.States = s.states.list()
	v.Sources, v.Destinations = s.sources.list(s.pods), s.dests.list(s.pods)
	slices.SortFunc(v.Flows, compareSamples)
	return &v
}

func compareSamples(a, b Sample) int {
	return cmp.Or(slices.Index(Kinds, a.Kind)-slices.Index(Kinds, b.Kind), a.Flow.Orig.compare(b.Flow.Orig),
		cmp.Compare(a.Flow.ID, b.Flow.ID))
}

func (t Tuple) compare(u Tuple) int {
	return cmp.Or(t.Src.Compare(u.Src), cmp.Compare(t.Proto, u.Proto), t.Dst.Compare(u.Dst),
		cmp.Compare(t.SPort, u.SPort), cmp.Compare(t.DPort, u.DPort), cmp.Compare(t.ID, u.ID))
}

// states counts entries by protocol and by what StateName tells apart: the state of TCP, or SeenReply and Assured.
type states [256][16]uint32

func (s *states) add(f *Flow) {
	if f.Orig.Proto == TCP {
		s[TCP][f.State&15]++
		return
	}
	s[f.Orig.Proto][f.Status&(SeenReply|Assured)]++
}

func (s *states) list() map[string]int {
	out := map[string]int{}
	for proto := range s {
		for state, n := range s[proto] {
			if n > 0 {
				f := Flow{Status: Status(state), State: uint8(state), Orig: Tuple{Proto: uint8(proto)}}
				out[f.Protocol()+" "+f.StateName()] += int(n)
			}
		}
	}
	return out
}

const (
	surveyEvery = 5 * time.Second // at the least: a list that changes faster cannot be read
	surveyShare = 50              // of the time, a look takes one part in so many
)

// Interval is how long to wait between two surveys, given what the last one took.
func Interval(took time.Duration) time.Duration { return max(surveyEvery, Share(took)) }

// Share is the least that a survey has to be away from the one before, given what that took.
func Share(took time.Duration) time.Duration { return surveyShare * took }

// Clone gives a survey that shares nothing with s.
func (s *Survey) Clone() Survey {
	c := *s
	c.Kinds, c.States, c.Masquerade = maps.Clone(s.Kinds), maps.Clone(s.States), maps.Clone(s.Masquerade)
	c.Flows, c.Sources, c.Destinations = slices.Clone(s.Flows), slices.Clone(s.Sources), slices.Clone(s.Destinations)
	c.Births.Cohorts = slices.Clone(s.Births.Cohorts)
	return c
}
