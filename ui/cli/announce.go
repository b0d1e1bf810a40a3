package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
)

// lineTime is long enough to stand alone in a log.
const lineTime = "2006-01-02T15:04:05.000Z07:00"

// announcer prints a line when an incident begins and one when it is over.
type announcer struct {
	out  io.Writer
	told map[int]bool // by number: whether its end was told
	last error        // trouble with the journal told last
	lost error        // trouble with what others read, told last
}

// skip passes over what a view holds already.
func (a *announcer) skip(v *incident.View) {
	a.told = map[int]bool{}
	for _, i := range v.Incidents {
		a.told[i.Number] = !i.Open
	}
}

// print tells what is new in a view.
func (a *announcer) print(v *incident.View) error {
	for _, i := range v.Incidents {
		ended, begun := a.told[i.Number]
		if ended || begun && i.Open {
			continue
		}
		if _, err := fmt.Fprintln(a.out, incidentLine(&i)); err != nil {
			return err
		}
		a.told[i.Number] = !i.Open
	}
	return nil
}

// trouble tells when writing the journal fails for another reason than before, and when it works again.
func (a *announcer) trouble(now flannel.Time, err error) error {
	before := a.last
	a.last = err
	text := "the journal is written again"
	switch {
	case (before == nil) == (err == nil) && (err == nil || before.Error() == err.Error()):
		return nil
	case errors.Is(err, journal.ErrBusy):
		text = "another process writes the journal; it will be taken over when that ends"
	case err != nil:
		text = "NOT RECORDING: " + flannel.Printable(err.Error())
	}
	_, failed := fmt.Fprintln(a.out, now.Wall.UTC().Format(lineTime)+"  "+text)
	return failed
}

// exporting tells when what others read cannot be written, and when it can be again.
func (a *announcer) exporting(now flannel.Time, err error) error {
	before := a.lost
	a.lost = err
	text := "the metrics are written again"
	switch {
	case (before == nil) == (err == nil):
		return nil
	case err != nil:
		text = "metrics are not written: " + flannel.Printable(err.Error())
	}
	_, failed := fmt.Fprintln(a.out, now.Wall.UTC().Format(lineTime)+"  "+text)
	return failed
}

// incidentLine tells of an incident what, when, how long, who.
func incidentLine(i *incident.Incident) string {
	line := fmt.Sprintf("%s  incident %d %s: ", i.Start.Wall.UTC().Format(lineTime), i.Number, i.Kind)
	for n, id := range i.Objects() {
		line += []string{", ", ""}[b2i(n == 0)] + id.String()
	}
	if i.Open {
		line += ", since then"
	} else {
		line += fmt.Sprintf(", over after %s", seconds(i.Duration(i.End)))
		if !i.Complete {
			line += ", not restored"
		}
	}
	if who := program(i.By); who != "" {
		line += ", by " + who
	}
	if who := program(i.RecoveredBy); who != "" && !i.Open {
		line += ", restored by " + who
	}
	return line
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// seconds writes a span with its milliseconds, "4.886 s".
func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }

// program names a program and who started it, "" where nobody is known: "iptables[48213] ← bash[47990]".
func program(w *incident.Who) string {
	if w == nil || w.Comm == "" {
		return ""
	}
	names := []string{processName(w.Comm, w.PID)}
	if w.Origin != nil {
		for _, p := range w.Origin.Parents.Value {
			names = append(names, processName(p.Comm, p.PID))
		}
	}
	return strings.Join(names, " ← ")
}

func processName(comm string, pid int) string {
	if pid == 0 {
		return flannel.Printable(comm)
	}
	return fmt.Sprintf("%s[%d]", flannel.Printable(comm), pid)
}
