package incident

import (
	"math"
	"time"
)

// kept is how many buckets of a Series are remembered: one hour.
const kept = 3600

// Series is a history in buckets of one Step, bounded in memory. A bucket for which no value is known is a gap, which is
// not zero. A Series handed out in a View never changes: the writer only appends behind what the copy can see.
type Series struct {
	first  int64     // number of the bucket of points[0], counted from the start of the session
	points []float32 // closed buckets, NaN for a gap
	open   float64   // value so far of the bucket behind points, NaN if none
}

// SeriesOf makes a Series of values whose oldest lies in bucket first; NaN is a gap.
func SeriesOf(first int64, values ...float64) Series {
	s := Series{first: first, points: make([]float32, len(values)), open: math.NaN()}
	for i, v := range values {
		s.points[i] = float32(v)
	}
	return s
}

// Window gives the newest n values of span buckets each, oldest first, as of the bucket now: the mean of the known values
// in each, NaN where none is known.
func (s Series) Window(now int64, n, span int) []float64 {
	out := make([]float64, n)
	for i := range out {
		var sum float64
		var known int
		for b := range span {
			if v := s.at(now - int64((n-1-i)*span+b)); !math.IsNaN(v) {
				sum += v
				known++
			}
		}
		out[i] = sum / float64(known) // NaN where nothing is known
	}
	return out
}

func (s Series) at(bucket int64) float64 {
	i := bucket - s.first
	switch {
	case i < 0 || s.points == nil || i > int64(len(s.points)):
		return math.NaN()
	case i == int64(len(s.points)):
		return s.open
	}
	return float64(s.points[i])
}

// history writes a Series: it spreads each known speed over the buckets of its span of time.
type history struct {
	Series
	sum    float64 // of the open bucket: speed times seconds
	weight float64 // of the open bucket: seconds known
}

// add notes that the speed was v from one moment to another, both counted from the start of the session. Spans come in
// order of time; whatever lies between two of them is a gap.
func (h *history) add(from, to time.Duration, v float64) {
	oldest := to - kept*Step
	for from = max(from, oldest); from < to; {
		bucket := int64(from / Step)
		h.openUp(bucket)
		end := min(to, time.Duration(bucket+1)*Step)
		seconds := (end - from).Seconds()
		h.sum += v * seconds
		h.weight += seconds
		h.open = h.sum / h.weight
		from = end
	}
}

// openUp closes every bucket before the given one.
func (h *history) openUp(bucket int64) {
	newest := h.first + int64(len(h.points))
	if h.points == nil || bucket-newest >= kept {
		*h = history{Series: Series{first: bucket, points: make([]float32, 0, 64), open: math.NaN()}}
		return
	}
	for ; newest < bucket; newest++ {
		h.push(float32(h.open))
		h.open, h.sum, h.weight = math.NaN(), 0, 0
	}
}

// push appends, and starts a new array when the old one is full: copies in views keep the old one.
func (h *history) push(v float32) {
	if len(h.points) == cap(h.points) {
		keep := h.points[max(0, len(h.points)-kept):]
		h.first += int64(len(h.points) - len(keep))
		h.points = append(make([]float32, 0, min(2*kept, 2*cap(h.points))), keep...)
	}
	h.points = append(h.points, v)
}
