// Command flanwatch watches, records and repairs what Flannel keeps in the packet filter of a Kubernetes node.
package main

func main() {}
