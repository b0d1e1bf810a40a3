package journal

import (
	"encoding/json"
	"fmt"
	"reflect"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// survey is the last look at every connection, as the JSON that tells it. Two looks differ in little, so the next is written
// as a patch: its JSON, deflated with that of the last one as dictionary, in base64. Text that is nil can be built on by
// nobody.
type survey struct{ text []byte }

// surveyOf takes the look out of a line that tells it in full.
func surveyOf(line []byte) survey {
	var x struct{ Flows json.RawMessage }
	if json.Unmarshal(line, &x) != nil {
		return survey{}
	}
	return survey{x.Flows}
}

// appendSurvey writes a look, as a patch if it can.
func (e *Encoder) appendSurvey(dst []byte, o *incident.Observation) ([]byte, error) {
	was := e.survey.text
	text, err := e.codec.append(nil, reflect.ValueOf(o.Flows))
	if err != nil {
		return dst, fmt.Errorf("encode observation: %w", err)
	}
	e.survey.text = text
	if was == nil {
		return e.append(dst, entry{Observation: *o})
	}
	patch, err := pack(text, was)
	if err != nil {
		return dst, fmt.Errorf("encode observation: %w", err)
	}
	return e.append(dst, entry{Patch: patch, Observation: incident.Observation{Time: o.Time}})
}

// patch gives a look by what it differs in from the last one.
func (d *Decoder) patch(x *entry) (*incident.Observation, error) {
	if d.survey.text == nil {
		d.Skipped++
		return nil, nil
	}
	text, err := unpack(x.Patch, d.survey.text)
	if err != nil {
		return nil, err
	}
	r := new(flannel.Reading[conntrack.Survey])
	if err := d.codec.read(text, r); err != nil {
		return nil, err
	}
	d.survey.text, d.running = text, true
	d.read = incident.Observation{Time: x.Time, Flows: r}
	return &d.read, nil
}
