// Package host reads what a node's files, processes and links say of Flannel's configuration, and weighs the sources
// against each other. Weighing is pure; reading (Linux only) opens every file through one reader that cannot be led out of
// its root by links, waits for nothing and bounds what it takes in.
package host
