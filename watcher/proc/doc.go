// Package proc looks at processes and links of one network namespace: which of them run Flannel, what else a node runs,
// and who is behind a process number that the kernel named. It reads /proc and asks the kernel; it runs no program in the
// poll path, attaches to nothing, and counts no process of which it cannot tell the namespace.
package proc
