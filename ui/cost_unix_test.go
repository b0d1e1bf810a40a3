//go:build unix

package ui

import (
	"syscall"
	"testing"
	"time"
)

func BenchmarkDraw200x50(b *testing.B) {
	m := still(b, many(), Options{})
	m.width, m.height = 200, 50
	b.ReportAllocs()
	for b.Loop() {
		m.draw()
	}
}

func BenchmarkDraw100x30(b *testing.B) {
	m := still(b, emptied(), Options{})
	m.width, m.height = 100, 30
	b.ReportAllocs()
	for b.Loop() {
		m.draw()
	}
}

// At rest a view comes every 100 ms and only numbers change: a picture a second is made, and little is written.
func TestAtRestOnePictureASecondAndLessThanAKilobyte(t *testing.T) {
	if testing.Short() {
		t.Skip("takes five seconds")
	}
	view := healthy()
	tt := open(t, 200, 50, view, nil)
	tt.shows("● OK")
	time.Sleep(300 * time.Millisecond)
	sent, begin := tt.sent(), time.Now()
	const watch = 5 * time.Second
	for i := 1; time.Since(begin) < watch; i++ {
		v := *view
		v.Now = view.Now.Add(time.Since(begin))
		v.Bucket = view.Bucket + int64(time.Since(begin)/time.Second)
		v.Chains = append(v.Chains[:0:0], view.Chains...)
		for j := range v.Chains {
			v.Chains[j].Rate.Packets += float64(i)
		}
		tt.box.Put(&v)
		time.Sleep(100 * time.Millisecond)
	}
	perSecond := float64(tt.sent()-sent) / time.Since(begin).Seconds()
	tt.keys("q")
	if err := tt.ends(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f B/s, %d pictures", perSecond, tt.m.draws)
	if perSecond > 1000 {
		t.Errorf("%.0f B/s to the terminal at rest", perSecond)
	}
	// Two or three at the start: empty, first view, size, background.
	if tt.m.draws > int(watch/time.Second)+6 {
		t.Errorf("%d pictures in %v", tt.m.draws, watch)
	}
}

// stall lets the terminal stop reading, with the program caught in a write.
func (tt *terminal) stall() {
	tt.mu.Lock()
	tt.stuck = make(chan struct{})
	tt.mu.Unlock()
	tt.keys("s")
	time.Sleep(200 * time.Millisecond)
}

func TestAStalledTerminalHoldsUpNeitherViewsNorASignal(t *testing.T) {
	flushed := make(chan struct{}, 1)
	tt := open(t, 100, 30, healthy(), func(o *Options) { o.Flush = func() { flushed <- struct{}{} } })
	tt.shows("● OK")
	tt.stall()
	view, begin := emptied(), time.Now()
	for range 100_000 {
		tt.box.Put(view)
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("100,000 views took %v", d)
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-tt.code:
		if code != 143 {
			t.Errorf("exit code %d, want 143", code)
		}
		if d := time.Since(begin); d > grace+time.Second {
			t.Errorf("ended after %v", d)
		}
	case <-time.After(2 * grace):
		t.Fatal("still there long after the signal")
	}
	select {
	case <-flushed:
	default:
		t.Error("nothing was flushed before the exit")
	}
}

func TestSignalsEndTheScreenWithTheirExitCode(t *testing.T) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGHUP: 129, syscall.SIGINT: 130} {
		tt := open(t, 100, 30, healthy(), nil)
		tt.shows("● OK")
		if err := syscall.Kill(syscall.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		err, ok := tt.ends().(*SignalError)
		if !ok || err.Code() != want {
			t.Errorf("%v gave %v", sig, err)
		}
	}
}
