package ui

import (
	"math"
	"strings"
	"time"

	"flanwatch/watcher/incident"
)

// rateGraph draws the rate of the selected chain over the lanes, on the same axis, where there is height to spare:
//
//	 64 c/s    ▂▅▇▆▃      ▂▃▂
//	          ▅█████▅▂▃▅▇████▆▃▂▁
//	v4 POSTRTG ██████████████████████····▆▇██
//
// Columns without a value stay empty, with a dot on the ground: a gap is not zero.
func (s *screen) rateGraph(c *incident.ChainView, label, w, height int, step time.Duration, end time.Time) []string {
	values := s.columnRates(c, w, step, end)
	watched := [2]int{s.column(s.view.Started, w, step, end), s.column(s.view.Now, w, step, end)}
	top := scaleOf(values)
	head := right(strings.TrimSpace(scaled(top))+" "+unitOf(c.ID)+"/s", label)
	out := make([]string, height)
	for row := range height {
		l := s.innerLine(groundPlain).gap(1)
		text := ""
		switch row {
		case 0:
			text = head
		case height - 1:
			text = right("0", label)
		}
		out[row] = l.put(roleDim, left(text, label)).gap(1).put(roleGraph, graphRow(values, watched, top, height-1-row, height)).full()
	}
	return out
}

// graphRow is the row at a height above the ground, of so many. Nothing stands outside the columns that were watched.
func graphRow(values []float64, watched [2]int, top float64, row, rows int) string {
	var b strings.Builder
	for i, v := range values {
		switch {
		case i < watched[0] || i > watched[1]:
			b.WriteByte(' ')
		case math.IsNaN(v) && row == 0:
			b.WriteRune('·')
		case math.IsNaN(v) || v <= 0 || top == 0:
			b.WriteByte(' ')
		default:
			eighths := int(math.Round(v/top*float64(8*rows))) - 8*row
			b.WriteRune([]rune(" ▁▂▃▄▅▆▇█")[min(max(eighths, 0), 8)])
		}
	}
	return b.String()
}

// columnRates gives the rate in each column of the axis, NaN where none is known.
func (s *screen) columnRates(c *incident.ChainView, w int, step time.Duration, end time.Time) []float64 {
	began := s.view.Now.Wall.Add(-s.view.Now.Sub(s.view.Started))
	last := int64((end.Sub(began) - 1) / incident.Step)
	if step >= incident.Step {
		return c.History.Window(last, w, int(step/incident.Step))
	}
	seconds := c.History.Window(last, int(time.Duration(w)*step/incident.Step)+2, 1)
	out := make([]float64, w)
	for i := range out {
		bucket := int64(end.Add(-time.Duration(w-1-i)*step-1).Sub(began) / incident.Step)
		out[i] = seconds[len(seconds)-1-int(last-bucket)]
	}
	return out
}
