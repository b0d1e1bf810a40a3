package remediate

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"flanwatch/flannel"
)

// Result says how far a plan came.
type Result string

// The results; the words are part of the JSON contract.
const (
	ResultStarted    Result = "started"    // begun; if nothing followed, flanwatch died on the way
	ResultVerified   Result = "verified"   // carried out, and found so by reading
	ResultUnverified Result = "unverified" // carried out, and not found so
	ResultFailed     Result = "failed"     // not carried out; the state is that of before
	ResultUndone     Result = "undone"     // taken back since
)

// Receipt is what remains of a plan that was carried out: enough to undo it.
type Receipt struct {
	ID     string      `json:"id"`
	Plan   string      `json:"plan"`
	Kind   Kind        `json:"kind"`
	Title  string      `json:"title"`
	Time   time.Time   `json:"time"`
	Place  Place       `json:"place"`
	Result Result      `json:"result"`
	Why    string      `json:"why,omitempty"`
	By     Actor       `json:"by"`
	Notes  []string    `json:"notes,omitempty"`  // what else a person should know of the result
	Judged []string    `json:"judged,omitempty"` // guards that a person overrode
	Backup string      `json:"backup"`
	Undoes string      `json:"undoes,omitempty"`
	Tables []TableEdit `json:"tables,omitempty"`
	Edits  []Edit      `json:"edits,omitempty"`
	Gone   []Gone      `json:"connections,omitempty"` // what was deleted, by tuple
}

// NewReceipt begins the receipt of a plan. Its ID starts with the time, so that names sort by it.
func NewReceipt(p Plan, at time.Time, place Place) Receipt {
	return Receipt{
		ID: ReceiptID(p, at), Plan: p.ID, Kind: p.Kind, Title: p.Title, Time: at.UTC(), Place: place,
		Result: ResultStarted, Undoes: p.Undoes, Tables: p.Tables, Edits: p.Edits, Gone: p.Deletions(),
	}
}

// ReceiptID names the receipt that a plan gets when it is carried out at that time.
func ReceiptID(p Plan, at time.Time) string {
	return at.UTC().Format("20060102T150405.000Z") + "-" + p.ID[:min(8, len(p.ID))]
}

// lineJSON is a line as files keep it: the rule in words that ParseRule reads.
type lineJSON struct {
	Mark   string `json:"mark"`
	At     int    `json:"at,omitempty"`
	Rule   string `json:"rule"`
	Bytes  []byte `json:"bytes,omitempty"` // the rule, where it is no text: comments of others hold any bytes
	Handle uint64 `json:"handle,omitempty"`
	Body   uint64 `json:"body,omitempty"`
	Raw    *Raw   `json:"raw,omitempty"`
}

// MarshalJSON writes a line.
func (l Line) MarshalJSON() ([]byte, error) {
	j := lineJSON{Mark: string(rune(l.Mark)), At: l.At, Rule: l.Rule.String(), Handle: l.Handle, Body: l.Body, Raw: l.Raw}
	if !utf8.ValidString(j.Rule) {
		j.Rule, j.Bytes = "", []byte(j.Rule)
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads a line.
func (l *Line) UnmarshalJSON(data []byte) error {
	var j lineJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	if len(j.Mark) != 1 {
		return fmt.Errorf("read line: unknown mark %q", j.Mark)
	}
	r, err := flannel.ParseRule(j.Rule + string(j.Bytes))
	if err != nil {
		return fmt.Errorf("read line: %w", err)
	}
	*l = Line{Mark: Mark(j.Mark[0]), At: j.At, Rule: r, Handle: j.Handle, Body: j.Body, Raw: j.Raw}
	switch l.Mark {
	case Keep, Remove, Add:
		return nil
	}
	return fmt.Errorf("read line: unknown mark %q", j.Mark)
}
