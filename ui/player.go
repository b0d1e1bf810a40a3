package ui

import "time"

// Player plays a recording into the mailbox. Its methods must not wait; what they lead to comes as a view.
type Player interface {
	Toggle()              // play, or hold still
	Step(n int)           // by so many observations, back if negative
	Jump(n int)           // to the next incident, or to the one before
	Seek(d time.Duration) // by a span of recorded time
	Speed(n int)          // by so many notches, slower if negative
}

// play lets the player take a key; it gives back false for those that keep their meaning.
func play(p Player, key string) bool {
	switch key {
	case "space":
		p.Toggle()
	case "left":
		p.Step(-1)
	case "right":
		p.Step(1)
	case "shift+left":
		p.Seek(-10 * time.Second)
	case "shift+right":
		p.Seek(10 * time.Second)
	case "ctrl+left":
		p.Seek(-time.Minute)
	case "ctrl+right":
		p.Seek(time.Minute)
	case "n":
		p.Jump(1)
	case "N":
		p.Jump(-1)
	case "+":
		p.Speed(1)
	case "-":
		p.Speed(-1)
	default:
		return false
	}
	return true
}
