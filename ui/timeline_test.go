package ui

import (
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"

	"github.com/charmbracelet/x/ansi"
)

// lane draws one lane of forty columns that ends at 12:04:40.
func lane(t *testing.T, step time.Duration, spans ...incident.Span) string {
	t.Helper()
	v := healthy()
	v.Chains[0].Lane = spans
	s := still(t, v, Options{})
	s.width = 120
	l := s.innerLine(groundPlain)
	s.putLane(l, s.laneCells(spans, 40, step, noon.Add(4*time.Minute+40*time.Second)))
	return strings.TrimRight(ansi.Strip(l.full()), " ")
}

func TestAGapFarShorterThanAColumnShowsOnItsLane(t *testing.T) {
	got := lane(t, 5*time.Second,
		incident.Span{From: at(started), State: flannel.ChainOK},
		incident.Span{From: at(noon.Add(3 * time.Minute)), State: flannel.ChainEmpty},
		incident.Span{From: at(noon.Add(3*time.Minute + time.Millisecond)), State: flannel.ChainOK})
	if want := strings.Repeat("━", 20) + "×" + strings.Repeat("━", 18); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestALaneTellsGoodWarningBadAndUnknownApart(t *testing.T) {
	got := lane(t, 5*time.Second,
		incident.Span{From: at(noon.Add(2 * time.Minute)), State: flannel.ChainOK},
		incident.Span{From: at(noon.Add(2*time.Minute + 50*time.Second)), State: flannel.ChainShadowed},
		incident.Span{From: at(noon.Add(3*time.Minute + 20*time.Second)), State: flannel.ChainEmpty},
		incident.Span{From: at(noon.Add(3*time.Minute + 40*time.Second)), State: flannel.ChainOK},
		incident.Span{From: at(noon.Add(4 * time.Minute)), State: flannel.ChainUnreadable})
	if want := "        ━━━━━━━━━━▲─────×····━━━???????"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestTheTimelineWidensWithTheTimeWatchedUntilAPersonChooses(t *testing.T) {
	v := *healthy()
	m := still(t, &v, Options{})
	m.width, m.height = 100, 30
	for watched, want := range map[time.Duration]time.Duration{
		5 * time.Second: time.Second, 100 * time.Second: 2 * time.Second, time.Hour: 5 * time.Second,
	} {
		v.Started = at(now.Add(-watched))
		if got := zooms[m.zoomLevel()]; got != want {
			t.Errorf("after %v a column is %v, want %v", watched, got, want)
		}
	}
	v.Started = at(now.Add(-time.Hour))
	m.choose(actZoomOut)
	m.choose(actZoomOut)
	if got := zooms[m.zoomLevel()]; got != 30*time.Second {
		t.Errorf("after two keys %v", got)
	}
}

func TestTheRateGraphStandsOnTheAxisOfTheLanes(t *testing.T) {
	v := healthy()
	n := int(v.Bucket) + 1
	values := make([]float64, n)
	for i := range values {
		values[i] = 10
	}
	for i := n - 30; i < n; i++ {
		values[i] = 20
	}
	c := &v.Chains[0]
	c.History = incident.SeriesOf(0, values...)
	s := still(t, v, Options{})
	s.width = 60
	end := noon.Add(4*time.Minute + 40*time.Second)
	for _, step := range []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second} {
		rows := s.rateGraph(c, 10, 40, 4, step, end)
		top, ground := []rune(ansi.Strip(rows[0])), []rune(ansi.Strip(rows[3]))
		from := len(" ") + 10 + len(" ")
		high := strings.Count(string(top[from:from+40]), "█")
		if want := min(int(30*time.Second/step), 40-int(9*time.Second/step)); high < want-2 || high > want+2 {
			t.Errorf("at %v a column: %d high columns, want about %d:\n%s", step, high, want, string(top))
		}
		if after := string(ground[from+s.column(v.Now, 40, step, end)+1 : from+40]); strings.TrimSpace(after) != "" {
			t.Errorf("at %v a column something stands in the future: %q", step, after)
		}
	}
}
