package journal

import (
	"fmt"
	"time"

	"flanwatch/watcher/incident"
)

// probeCode stands in place of a backend in lines that tell successful attempts to connect to the target of the last ones.
// Behind the times follow the difference of the count, and those of all durations in the unit of the times.
const probeCode = 5

// probe is the last observation of successful attempts to connect.
type probe struct {
	incident.Probe
	whole bool // it was told in full, and no line since is missing
}

func durations(p *incident.Probe) [4]*time.Duration {
	return [...]*time.Duration{&p.Took, &p.Max, &p.First, &p.Last}
}

// appendProbe writes successful attempts, as differences if it can.
func (e *Encoder) appendProbe(dst []byte, o *incident.Observation) ([]byte, error) {
	was := e.probe
	e.probe = probe{*o.Probe, true}
	if !was.whole || was.Target != o.Probe.Target || was.From != o.Probe.From || !e.follows(o.Time) {
		return e.append(dst, entry{Observation: *o})
	}
	var moved [4]int64
	before, now := durations(&was.Probe), durations(&e.probe.Probe)
	for i := range now {
		moved[i] = int64(*now[i] - *before[i])
	}
	e.begin(probeCode, o.Time, moved[:]...)
	e.list = append(append(e.list, int64(o.Probe.Count-was.Count)), moved[:]...)
	return appendNumbers(dst, e.list), nil
}

// moveProbe gives attempts by what they differ in from the last ones.
func (d *Decoder) moveProbe(list []int64, unit int64) (*incident.Observation, error) {
	if !d.timed || !d.probe.whole {
		d.probe.whole = false
		d.Skipped++
		return nil, nil
	}
	f := durations(&d.probe.Probe)
	if len(list) > 1+len(f) {
		return nil, fmt.Errorf("%d figures of attempts to connect", len(list))
	}
	for i, v := range list {
		if i == 0 {
			d.probe.Count += int(v)
		} else {
			*f[i-1] += time.Duration(v * unit)
		}
	}
	d.running = true
	d.tried = d.probe.Probe
	d.read = incident.Observation{Time: d.last, Probe: &d.tried}
	return &d.read, nil
}
