package ingest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"
)

// reloadEvery is the time between two looks at the files. Comparing their content detects every way of replacing a file: writing, renaming,
// and the symbolic links that Kubernetes exchanges.
const reloadEvery = time.Second

// maxFileBytes is the largest part of a file that is read.
const maxFileBytes = 4 << 20

// watched is a set of files that belong together, with the function that applies their contents.
type watched struct {
	what  string
	paths []string
	take  func(contents [][]byte) error
	seen  [sha256.Size]byte // of the contents or of the error
}

// look applies the contents if they have changed since its last call. The error is new: the next look at unchanged files returns none.
func (w *watched) look() (taken bool, err error) {
	hash := sha256.New()
	contents := make([][]byte, len(w.paths))
	for i, path := range w.paths {
		content, readErr := readBounded(path)
		contents[i], err = content, errors.Join(err, readErr)
		_, _ = fmt.Fprintf(hash, "%d:%s", len(content), content) // never fails
	}
	if err != nil {
		_, _ = io.WriteString(hash, err.Error())
	}
	now := [sha256.Size]byte(hash.Sum(nil))
	if now == w.seen {
		return false, nil
	}
	w.seen = now
	if err == nil {
		err = w.take(contents)
	}
	if err != nil {
		return false, fmt.Errorf("reading %s in %s: %w", w.what, strings.Join(w.paths, ", "), err)
	}
	return true, nil
}

func (w *watched) reload(logger *slog.Logger) {
	switch taken, err := w.look(); {
	case err != nil:
		logger.Error("cannot reload file; keeping the last valid version", "error", err)
	case taken:
		logger.Info("file reloaded", "what", w.what)
	}
}

func readBounded(path string) ([]byte, error) {
	// Without O_NONBLOCK, opening a named pipe waits for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // who runs the program names the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, fmt.Errorf("%s is not a regular file", path))
	}
	content, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFileBytes)
	}
	return content, err
}
