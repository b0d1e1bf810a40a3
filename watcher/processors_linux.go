package watcher

import "runtime"

// spare is how many goroutines may run at once, at least.
const spare = 8

// SpareProcessors lets more goroutines run at once than there are processors, for a program that watches. The listener's
// thread runs ahead of all others of the machine, yet its goroutine would wait for those of this program that hold all of
// Go's processors while the machine keeps their threads waiting.
func SpareProcessors() { runtime.GOMAXPROCS(max(spare, runtime.NumCPU())) }
