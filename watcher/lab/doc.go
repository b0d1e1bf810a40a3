// Package lab builds throwaway Flannel nodes in network namespaces, with real rules and real traffic, for the demo and for
// tests. It touches nothing outside the namespaces it makes, needs no external program, and leaves nothing behind.
package lab
