// Package screen prints for people at a terminal and for programs behind a pipe: tables, one line of JSON, times and sizes, questions, a
// progress bar, and frames that are redrawn in place.
//
// Callers make texts of producers harmless with package plain first; [PrintJSON] escapes control characters itself. A [Progress] and a
// [Pane] may be used by many goroutines. Nothing here changes a mode of the terminal beyond one write, so a program that is killed
// leaves nothing to restore.
package screen
