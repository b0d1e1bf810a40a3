package journal

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

const (
	// keyEvery is how often all counters are written, so that damage to a line costs no more than that.
	keyEvery = time.Minute
	// syncEvery is how often everything is written in full, so that a reader can start there.
	syncEvery = 5 * time.Minute
)

// Encoder turns observations into lines. It is pure: bytes in, bytes out.
type Encoder struct {
	header   Header
	codec    codec
	last     flannel.Time // of the line before
	synced   flannel.Time
	started  bool
	fulls    uint64
	backends backends
	table    table
	probe    probe
	survey   survey
	keyed    [3]flannel.Time // when each backend was last written in full, or all of its counters
	carried  carried
	list     []int64 // room for a line of numbers
}

// NewEncoder is an encoder for one session. Of the header, Schema, Time and Part are filled in by Begin.
func NewEncoder(h Header) *Encoder {
	e := &Encoder{header: h, codec: newCodec()}
	e.header.Schema = Schema
	e.codec.session = h.Session
	return e
}

// Begin appends what opens a file: the header, what is missing since the last file (nil for nothing), and a sync.
func (e *Encoder) Begin(dst []byte, at flannel.Time, gap *Gap) ([]byte, error) {
	e.header.Part++
	e.header.Time = at
	dst, err := e.line(dst, e.header, at)
	if err == nil && gap != nil {
		dst, err = e.append(dst, entry{Gap: gap, Observation: incident.Observation{Time: at}})
	}
	if err != nil {
		return dst, err
	}
	return e.sync(dst, at)
}

// sync writes what a reader needs to start here.
func (e *Encoder) sync(dst []byte, at flannel.Time) ([]byte, error) {
	dst, err := e.append(dst, entry{Sync: true, Observation: incident.Observation{Time: at}})
	if err != nil {
		return dst, err
	}
	e.synced, e.started = at, true
	for i := range e.backends {
		e.backends[i].full = 0
	}
	e.table.whole, e.probe.whole, e.survey.text = false, false, nil
	return e.carried.append(dst), nil
}

// Append appends the lines of an observation. It keeps nothing of what o points to. Important tells whether it is more than
// a reading of counters, so that losing it would lose an event. After an error nothing of it is in dst, and the next
// ruleset will be written in full.
func (e *Encoder) Append(dst []byte, o *incident.Observation) (_ []byte, important bool, err error) {
	n := len(dst)
	defer func() {
		if err != nil {
			dst = dst[:n]
			e.started = false
		}
	}()
	if !e.started || o.Time.Session != e.synced.Session || o.Time.Sub(e.synced) >= syncEvery {
		if dst, err = e.sync(dst, o.Time); err != nil {
			return dst[:n], false, err
		}
	}
	switch {
	case o.Rules != nil && slot(o.Rules.Backend) >= 0:
		dst, important, err = e.appendRules(dst, o)
	case o.Table != nil:
		dst, err = e.appendTable(dst, o)
	case o.Probe != nil && o.Probe.Why == "":
		dst, err = e.appendProbe(dst, o)
	case o.Flows != nil:
		dst, err = e.appendSurvey(dst, o)
	default:
		important = !isRoutine(o)
		dst, err = e.appendFact(dst, o)
	}
	if err != nil {
		return dst[:n], false, err
	}
	return dst, important, nil
}

// isRoutine tells whether an observation of its kind comes all the time.
func isRoutine(o *incident.Observation) bool {
	return o.Commit != nil && !isNews(o.Commit)
}

// isNews tells whether a commit touched anything that Flannel uses, or may have.
func isNews(c *incident.Commit) bool { return c.Lost || len(c.Changes) > 0 || len(c.Tables) > 0 }

// Note remembers of an observation that is not written what readers will have to be told later.
func (e *Encoder) Note(o *incident.Observation) { _ = e.carried.note(e, o) } // what cannot be written is missing then too

// appendFact writes anything but rules.
func (e *Encoder) appendFact(dst []byte, o *incident.Observation) ([]byte, error) {
	dst, err := e.append(dst, entry{Observation: *o})
	if err == nil {
		err = e.carried.note(e, o)
	}
	return dst, err
}

// append writes an object as a line.
func (e *Encoder) append(dst []byte, x entry) ([]byte, error) { return e.line(dst, x, x.Time) }

func (e *Encoder) line(dst []byte, x any, at flannel.Time) ([]byte, error) {
	dst, err := e.codec.append(dst, reflect.ValueOf(x))
	if err != nil {
		return dst, fmt.Errorf("encode observation: %w", err)
	}
	e.last = at
	return append(dst, '\n'), nil
}

// appendRules writes a reading as shortly as it can be told.
func (e *Encoder) appendRules(dst []byte, o *incident.Observation) (_ []byte, news bool, err error) {
	i := slot(o.Rules.Backend)
	was := &e.backends[i]
	if was.full == 0 || !sameBut(&was.RulesRead, o.Rules) || o.Rules.Ruleset.At != o.Time {
		news = was.Ruleset.State != o.Rules.Ruleset.State || was.Ruleset.Value.Revision != o.Rules.Ruleset.Value.Revision
		dst, err = e.appendFull(dst, o, i)
		return dst, news, err
	}
	rules := o.Rules.Ruleset.Value
	known := o.Rules.Ruleset.State == flannel.Known
	switch {
	case !e.follows(o.Time) || known && o.Time.Sub(e.keyed[i]) >= keyEvery:
		c := counters{Full: was.full, Generation: rules.Generation}
		was.keep(o.Rules)
		was.each(func(_ int, entry *flannel.Entry) {
			c.Values = append(c.Values, entry.Counter.Packets, entry.Counter.Bytes)
		})
		e.keyed[i] = o.Time
		dst, err = e.append(dst, entry{Counters: &c, Observation: incident.Observation{Time: o.Time}})
	default:
		dst = e.appendDelta(dst, o, i)
	}
	return dst, false, err
}

// follows tells whether a moment can be told as a difference from the line before.
func (e *Encoder) follows(t flannel.Time) bool {
	return t.Session == e.header.Session && e.last.Session == t.Session && countable(t) && countable(e.last)
}

// appendFull writes a reading in full: packed, if that is only for those who start reading here.
func (e *Encoder) appendFull(dst []byte, o *incident.Observation, i int) ([]byte, error) {
	e.fulls++
	before, repeated := len(dst), sameBut(&e.backends[i].RulesRead, o.Rules)
	dst, err := e.append(dst, entry{Full: e.fulls, Observation: *o})
	if err == nil && repeated {
		dst, err = e.appendPacked(dst[:before], dst[before:len(dst)-1], o)
	}
	if err != nil {
		return dst, err
	}
	e.backends[i] = reading{RulesRead: *o.Rules, full: e.fulls}
	e.backends[i].Ruleset.Value = o.Rules.Ruleset.Value.Clone()
	e.keyed[i] = o.Time
	return dst, nil
}

func (e *Encoder) appendPacked(dst, line []byte, o *incident.Observation) ([]byte, error) {
	packed, err := pack(line, nil)
	if err != nil {
		return dst, fmt.Errorf("encode observation: %w", err)
	}
	return e.append(dst, entry{Packed: packed, Observation: incident.Observation{Time: o.Time}})
}

// appendDelta writes what has moved since the last reading. It does not allocate.
func (e *Encoder) appendDelta(dst []byte, o *incident.Observation, i int) []byte {
	was, is := &e.backends[i], &o.Rules.Ruleset.Value
	e.begin(int64(i+1), o.Time)
	e.list = append(e.list, int64(is.Generation)-int64(was.Ruleset.Value.Generation))
	n := 0
	for c := range is.Chains {
		before := was.Ruleset.Value.Chains[c].Entries
		for j := range is.Chains[c].Entries {
			a, b := before[j].Counter, is.Chains[c].Entries[j].Counter
			if a != b {
				e.list = append(e.list, int64(n), int64(b.Packets-a.Packets), int64(b.Bytes-a.Bytes))
			}
			n++
		}
	}
	was.keep(o.Rules)
	return appendNumbers(dst, e.list)
}

// appendTable writes the counters of connection tracking, as differences if it can.
func (e *Encoder) appendTable(dst []byte, o *incident.Observation) ([]byte, error) {
	was := e.table
	e.table = table{*o.Table, true}
	if !was.whole || !sameTable(&was.Reading, o.Table) || o.Table.At != o.Time || !e.follows(o.Time) {
		return e.append(dst, entry{Observation: *o})
	}
	e.begin(tableCode, o.Time)
	before, now := figures(&was.Value), figures(&e.table.Value)
	for i := range now {
		e.list = append(e.list, int64(now[i].N-before[i].N))
	}
	return appendNumbers(dst, e.list), nil
}

// begin begins a line of numbers, and brings further spans to its unit.
func (e *Encoder) begin(code int64, at flannel.Time, spans ...int64) {
	boot := int64(at.Boot - e.last.Boot)
	wall := at.Wall.UnixNano() - e.last.Wall.UnixNano() - boot
	if boot%micro == 0 && wall%micro == 0 && !slices.ContainsFunc(spans, func(v int64) bool { return v%micro != 0 }) {
		for i := range spans {
			spans[i] /= micro
		}
		code, boot, wall = code+inMicro, boot/micro, wall/micro
	}
	e.list = append(e.list[:0], code, boot, wall)
	e.last = at
}

// inMicro is added to the number of a source where the times behind it are in microseconds and not in nanoseconds.
const (
	inMicro = 10
	micro   = 1000
)

// appendNumbers writes a line of numbers without the zeros at its end.
func appendNumbers(dst []byte, list []int64) []byte {
	for list[len(list)-1] == 0 {
		list = list[:len(list)-1]
	}
	for i, v := range list {
		dst = append(dst, ",["[b2i(i == 0)])
		dst = strconv.AppendInt(dst, v, 10)
	}
	return append(dst, ']', '\n')
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// keep takes over the counters of a reading that is otherwise the same.
func (r *reading) keep(next *incident.RulesRead) {
	r.Ruleset.At = next.Ruleset.At
	r.Ruleset.Value.Generation = next.Ruleset.Value.Generation
	for i := range next.Ruleset.Value.Chains {
		entries := next.Ruleset.Value.Chains[i].Entries
		for j := range entries {
			r.Ruleset.Value.Chains[i].Entries[j].Counter = entries[j].Counter
		}
	}
}
