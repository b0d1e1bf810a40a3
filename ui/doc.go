// Package ui draws a view of the node on a terminal and hands back what the person wants. Drawing is pure: a screen is a
// value, and its picture a function of that value and a size. One Bubble Tea model around it turns keys, sizes and new
// views into changes of the screen.
package ui
