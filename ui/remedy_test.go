package ui

import "time"

// recorder is a player that notes what it is asked for.
type recorder struct {
	asked []string
	to    time.Time
}

func (r *recorder) Toggle()              { r.asked = append(r.asked, "toggle") }
func (r *recorder) Step(n int)           { r.asked = append(r.asked, "step") }
func (r *recorder) Jump(n int)           { r.asked = append(r.asked, "jump") }
func (r *recorder) Seek(d time.Duration) { r.asked = append(r.asked, "seek "+d.String()) }
func (r *recorder) GoTo(t time.Time)     { r.asked, r.to = append(r.asked, "go to"), t }
func (r *recorder) Speed(n int)          { r.asked = append(r.asked, "speed") }
