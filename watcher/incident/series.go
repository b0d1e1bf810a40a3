package incident

import "math"

// Series is a history in buckets of one Step, bounded in memory. A bucket for which no value is known is a gap, which is
// not zero. A Series handed out in a View never changes.
type Series struct {
	last   int64 // number of the newest bucket, counted from the start of the session
	points []float32
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
	i := len(s.points) - 1 - int(s.last-bucket)
	if i < 0 || i >= len(s.points) {
		return math.NaN()
	}
	return float64(s.points[i])
}
