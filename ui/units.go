package ui

import (
	"fmt"
	"math"
	"time"

	"flanwatch/flannel"
)

// Signs for a value that is not there. Both differ from 0, which is a value.
const (
	unknown       = "–" // there is one, and nobody knows it
	notApplicable = "·" // there can be none
)

var prefixes = []byte(" kMGTPE")

// scaled writes v in exactly five columns: at most three digits and the prefix of the unit, "18.4k", "  12 ", "9.21G".
// Values below ten without a prefix keep one digit after the point; what would show as 0.0 and is not shows as "<0.1".
func scaled(v float64) string {
	switch {
	case math.IsNaN(v):
		return fmt.Sprintf("%4s ", unknown)
	case v == 0:
		return "   0 "
	case v < 0.05:
		return "<0.1 "
	case v < 9.95:
		return fmt.Sprintf("%4.1f ", v)
	}
	p := 0
	for v >= 999.5 && p < len(prefixes)-1 {
		v /= 1000
		p++
	}
	switch {
	case p == 0 || v >= 99.95:
		return fmt.Sprintf("%4.0f%c", v, prefixes[p])
	case v >= 9.995:
		return fmt.Sprintf("%4.1f%c", v, prefixes[p])
	}
	return fmt.Sprintf("%4.2f%c", v, prefixes[p])
}

// count writes a whole number in five columns; below a thousand it is exact.
func count(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%4d ", n)
	}
	return scaled(float64(n))
}

// unitOf tells what a rule of the table counts: a nat chain sees only the first packet of each connection.
func unitOf(id flannel.ChainID) string {
	if isNat(id) {
		return "c"
	}
	return "p"
}

// isNat tells whether the chain translates addresses. Flannel's native tables hold both kinds, told by the chain's name.
func isNat(id flannel.ChainID) bool {
	if id.Backend == flannel.Nftables {
		return id.Name == "postrtg"
	}
	return id.Table == "nat"
}

// span writes a duration the way a person says it, with the precision that matters at that length.
func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", math.Floor(d.Seconds()*10)/10)
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

// exactSpan is span to the millisecond, where milliseconds are known and matter.
func exactSpan(d time.Duration) string {
	if d = max(d, 0); d < time.Second || d >= time.Minute {
		return span(d)
	}
	return fmt.Sprintf("%.3f s", d.Truncate(time.Millisecond).Seconds())
}

// offset writes the distance of a moment from another one, with its sign.
func offset(d time.Duration) string {
	if d < 0 {
		return "−" + exactSpan(-d)
	}
	return "+" + exactSpan(d)
}

// period writes a round duration as short as it goes: "0.5 s", "2 min".
func period(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return fmt.Sprintf("%d min", int(d.Minutes()))
}

// moment writes the time of an event in twelve columns: with milliseconds on the day of now, else with its date.
func moment(t, now time.Time, loc *time.Location) string {
	if sameDay(t, now, loc) {
		return t.In(loc).Format("15:04:05.000")
	}
	return t.In(loc).Format("01-02 15:04 ")
}

// dayTime is moment for a sentence: to the second.
func dayTime(t, now time.Time, loc *time.Location) string {
	if sameDay(t, now, loc) {
		return t.In(loc).Format("15:04:05")
	}
	return t.In(loc).Format("01-02 15:04")
}

func sameDay(t, now time.Time, loc *time.Location) bool {
	t, now = t.In(loc), now.In(loc)
	return t.YearDay() == now.YearDay() && t.Year() == now.Year()
}
