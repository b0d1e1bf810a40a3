package journal

import (
	"bytes"
	"errors"
	"fmt"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Decoder turns lines back into observations. It is pure. The zero value is not ready for use; see NewDecoder.
type Decoder struct {
	Header  Header // of the session being read
	Skipped int    // lines passed over because a line that they build on is damaged or missing

	codec    codec
	last     flannel.Time // of the line before
	timed    bool         // last is known
	running  bool         // what was read so far goes on in this line, so what is carried is known
	gapped   bool         // a gap was told, and not yet its end
	backends backends
	table    table
	probe    probe
	survey   survey
	tried    incident.Probe
	health   flannel.Reading[conntrack.Health]
	numbers  []int64
	rules    incident.RulesRead
	read     incident.Observation
}

// NewDecoder is a decoder that has seen nothing yet.
func NewDecoder() *Decoder { return &Decoder{codec: newCodec()} }

// Unknown is the number of keys met that this version does not know.
func (d *Decoder) Unknown() int { return d.codec.unknown }

var (
	errNoHeader = errors.New("line before the header")
	errOrder    = errors.New("line does not fit the ruleset before it")
)

// Line reads one line. It gives nil where the line holds no observation, or none that is news. What it gives is valid until
// the next call. A line that cannot be read is an error, and the decoder goes on behind it.
func (d *Decoder) Line(line []byte) (*incident.Observation, error) {
	var o *incident.Observation
	var err error
	switch {
	case bytes.HasPrefix(line, []byte("[")):
		o, err = d.delta(line)
	case bytes.HasPrefix(line, []byte(headerPrefix)):
		err = d.header(line)
	default:
		o, err = d.object(line)
	}
	if err != nil {
		d.Miss()
	}
	return o, err
}

// headerPrefix and syncPrefix begin the lines at which a reader can start.
const (
	headerPrefix = `{"schema":`
	syncPrefix   = `{"sync":`
	packedPrefix = `{"packed":`
)

// Miss tells the decoder that lines are missing here.
func (d *Decoder) Miss() {
	d.timed, d.table.whole, d.probe.whole, d.survey.text = false, false, false, nil
	for i := range d.backends {
		d.backends[i].whole = false
	}
}

func (d *Decoder) header(line []byte) error {
	var h Header
	session := d.codec.session
	d.codec.session = ""
	if err := d.codec.read(line, &h); err != nil {
		d.codec.session = session
		return err
	}
	if h.Schema != Schema {
		d.codec.session = session
		return fmt.Errorf("schema %q, want %q", h.Schema, Schema)
	}
	d.codec.session = h.Session
	if h.Time.Session == "" {
		h.Time.Session = h.Session
	}
	d.running = d.running && h.Session == d.Header.Session && h.Part == d.Header.Part+1
	d.Header, d.last, d.timed = h, h.Time, true
	d.backends, d.table, d.probe, d.survey = backends{}, table{}, probe{}, survey{}
	return nil
}

func (d *Decoder) object(line []byte) (*incident.Observation, error) {
	if d.Header.Schema == "" {
		return nil, errNoHeader
	}
	var x entry
	if err := d.codec.read(line, &x); err != nil {
		return nil, err
	}
	if x.Packed != "" {
		return d.packed(&x)
	}
	if x.Carried {
		if d.running {
			return nil, nil
		}
		d.read = x.Observation
		return &d.read, nil
	}
	d.last, d.timed = x.Time, true
	switch {
	case x.Sync && d.gapped:
		d.gapped = false
		d.read = incident.Observation{Time: x.Time, Fault: &incident.Fault{Reader: faultReader}}
		return &d.read, nil
	case x.Sync:
		return nil, nil
	case x.Gap != nil:
		return d.gap(&x), nil
	case x.Counters != nil:
		return d.counters(&x)
	case x.Patch != "":
		return d.patch(&x)
	}
	d.running = true
	d.read = x.Observation
	switch {
	case x.Rules != nil:
		d.keep(x.Rules, x.Full)
	case x.Table != nil:
		d.table = table{*x.Table, true}
	case x.Probe != nil && x.Probe.Why == "":
		d.probe = probe{*x.Probe, true}
	case x.Flows != nil:
		d.survey = surveyOf(line)
	}
	return &d.read, nil
}

// packed reads the line within a line, which must not be of the same sort.
func (d *Decoder) packed(x *entry) (*incident.Observation, error) {
	line, err := unpack(x.Packed, nil)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(line, []byte(packedPrefix)) {
		return nil, errPacked
	}
	return d.object(line)
}

// faultReader names the journal in faults.
const faultReader = "journal"

// gap makes missing observations visible as a trouble of the journal, from the first of them until the sync that follows.
func (d *Decoder) gap(x *entry) *incident.Observation {
	d.running, d.gapped = false, true
	why := fmt.Sprintf("%d observations were not recorded: %s", x.Gap.Lost, x.Gap.Why)
	d.read = incident.Observation{Time: x.Gap.From, Fault: &incident.Fault{Reader: faultReader, Why: why}}
	return &d.read
}

func (d *Decoder) keep(r *incident.RulesRead, full uint64) {
	if i := slot(r.Backend); i >= 0 {
		d.backends[i] = reading{RulesRead: *r, full: full, whole: full != 0}
	}
}

// counters gives the ruleset with all of its counters anew.
func (d *Decoder) counters(x *entry) (*incident.Observation, error) {
	for i := range d.backends {
		r := &d.backends[i]
		if r.full == 0 || r.full != x.Counters.Full {
			continue
		}
		values, n := x.Counters.Values, 0
		r.each(func(int, *flannel.Entry) { n += 2 })
		if n != len(values) {
			return nil, errOrder
		}
		r.each(func(i int, e *flannel.Entry) {
			e.Counter = flannel.Counter{Packets: values[2*i], Bytes: values[2*i+1]}
		})
		r.whole = true
		return d.hand(r, x.Counters.Generation), nil
	}
	d.Skipped++
	return nil, nil
}

// delta gives the ruleset with some of its counters moved.
func (d *Decoder) delta(line []byte) (*incident.Observation, error) {
	numbers, err := parseNumbers(d.numbers[:0], line)
	d.numbers = numbers
	if err != nil {
		return nil, err
	}
	for len(numbers) < 4 {
		numbers = append(numbers, 0)
	}
	d.numbers = numbers
	code, unit := numbers[0], int64(1)
	if code > inMicro {
		code, unit = code-inMicro, micro
		numbers[1], numbers[2] = numbers[1]*micro, numbers[2]*micro
	}
	if code < 1 || code > probeCode {
		return nil, fmt.Errorf("no source has number %d", code)
	}
	if d.timed {
		if !countable(d.last) {
			return nil, errOrder
		}
		d.last = after(d.last, numbers[1], numbers[2])
	}
	if code == tableCode {
		return d.moveTable(numbers[3:])
	}
	if code == probeCode {
		return d.moveProbe(numbers[3:], unit)
	}
	r := &d.backends[code-1]
	if !d.timed || !r.whole {
		r.whole = false
		d.Skipped++
		return nil, nil
	}
	if !r.move(numbers[4:]) {
		return nil, errOrder
	}
	return d.hand(r, uint32(int64(r.Ruleset.Value.Generation)+numbers[3])), nil
}

// moveTable gives the counters of connection tracking with what they have moved.
func (d *Decoder) moveTable(list []int64) (*incident.Observation, error) {
	if !d.timed || !d.table.whole {
		d.table.whole = false
		d.Skipped++
		return nil, nil
	}
	if err := d.table.move(list); err != nil {
		return nil, err
	}
	d.running = true
	d.table.At = d.last
	d.health = d.table.Reading
	d.read = incident.Observation{Time: d.last, Table: &d.health}
	return &d.read, nil
}

// move adds rule, packets, bytes; zeros at the end may be missing. It says no if there is no such rule.
func (r *reading) move(list []int64) bool {
	first := 0
	for c := range r.Ruleset.Value.Chains {
		entries := r.Ruleset.Value.Chains[c].Entries
		for len(list) > 0 && list[0] >= int64(first) && list[0] < int64(first+len(entries)) {
			e := &entries[list[0]-int64(first)]
			var v [3]int64
			list = list[copy(v[:], list):]
			e.Counter.Packets += uint64(v[1])
			e.Counter.Bytes += uint64(v[2])
		}
		first += len(entries)
	}
	return len(list) == 0
}

// hand gives the reading as it is at the time of the line.
func (d *Decoder) hand(r *reading, generation uint32) *incident.Observation {
	d.running = true
	r.Ruleset.At = d.last
	r.Ruleset.Value.Generation = generation
	d.rules = r.RulesRead
	d.read = incident.Observation{Time: d.last, Rules: &d.rules}
	return &d.read
}

var errNumbers = errors.New("not a line of numbers")

// parseNumbers reads a line of numbers.
func parseNumbers(dst []int64, line []byte) ([]int64, error) {
	line, whole := bytes.CutSuffix(line, []byte("]"))
	if !whole || len(line) < 2 {
		return dst, errNumbers
	}
	line = line[1:]
	for {
		negative := len(line) > 0 && line[0] == '-'
		if negative {
			line = line[1:]
		}
		n, v := 0, uint64(0)
		for n < len(line) && line[n] >= '0' && line[n] <= '9' {
			v = v*10 + uint64(line[n]-'0')
			n++
		}
		if n == 0 || n > 19 {
			return dst, errNumbers
		}
		if negative {
			v = -v
		}
		dst = append(dst, int64(v))
		line = line[n:]
		if len(line) == 0 {
			return dst, nil
		}
		if line[0] != ',' {
			return dst, errNumbers
		}
		line = line[1:]
	}
}
