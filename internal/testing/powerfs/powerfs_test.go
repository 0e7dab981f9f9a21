//go:build powerloss

package powerfs_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/powerfs"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// disk opens files of a disk and keeps them open.
type disk struct {
	*powerfs.Disk
	t *testing.T
}

func (d disk) path(name string) string { return filepath.Join(d.Folder, name) }

func (d disk) write(name, text string, flags int) *os.File {
	file := testkit.Must(os.OpenFile(d.path(name), flags|os.O_CREATE|os.O_WRONLY, 0o600))(d.t)
	testkit.Must(file.WriteString(text))(d.t)
	d.t.Cleanup(func() { _ = file.Close() })
	return file
}

// files lists the disk: name=text for a file, name/ for an empty folder.
func (d disk) files() (found []string) {
	testkit.NoError(d.t, filepath.WalkDir(d.Folder, func(path string, entry os.DirEntry, err error) error {
		name, _ := strings.CutPrefix(path, d.Folder+"/")
		switch {
		case err != nil || path == d.Folder:
		case entry.IsDir():
			found = append(found, name+"/")
		default:
			found = append(found, name+"="+testkit.Text(d.t, path))
		}
		return err
	}))
	slices.Sort(found)
	return found
}

func TestFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(disk)
		want []string // after the power failed
	}{
		"never synced":      {func(d disk) { d.write("a", "lost", 0) }, nil},
		"synced":            {func(d disk) { d.syncFile(d.write("a", "kept", 0)) }, []string{"a=kept"}},
		"written after":     {func(d disk) { f := d.write("a", "kept", 0); d.syncFile(f); d.more(f, " lost") }, []string{"a=kept"}},
		"overwritten after": {func(d disk) { d.syncFile(d.write("a", "kept", 0)); d.write("a", "LO", 0) }, []string{"a=kept"}},
		"truncated after":   {func(d disk) { d.syncFile(d.write("a", "kept", 0)); d.write("a", "", os.O_TRUNC) }, []string{"a=kept"}},
		"O_SYNC":            {func(d disk) { d.write("a", "kept", os.O_SYNC) }, []string{"a=kept"}},
		"appended":          {func(d disk) { d.write("a", "one ", 0); d.syncFile(d.write("a", "two", os.O_APPEND)) }, []string{"a=one two"}},
		"long": {func(d disk) {
			f := d.write("a", strings.Repeat("0123456789", 5000), 0)
			d.syncFile(f)
			testkit.NoError(d.t, f.Truncate(20005))
			d.syncFile(f)
			testkit.NoError(d.t, f.Truncate(0))
		}, []string{"a=" + strings.Repeat("0123456789", 2000) + "01234"}},
		"name by another sync": {func(d disk) { d.write("a", "lost", 0); d.syncFile(d.write("b", "kept", 0)) }, []string{"a=", "b=kept"}},
		"folder synced": {func(d disk) {
			testkit.NoError(d.t, os.MkdirAll(d.path("x/y"), 0o700))
			d.syncFolder("x")
			testkit.NoError(d.t, os.Mkdir(d.path("z"), 0o700))
		}, []string{"x/", "x/y/"}},
		"renamed over": {func(d disk) {
			d.syncFile(d.write("a", "old", 0))
			d.syncFile(d.write("a.tmp", "new", 0))
			testkit.NoError(d.t, os.Rename(d.path("a.tmp"), d.path("a")))
		}, []string{"a.tmp=new", "a=old"}},
		"renamed over, synced": {func(d disk) {
			d.syncFile(d.write("a", "old", 0))
			d.syncFile(d.write("a.tmp", "new", 0))
			testkit.NoError(d.t, os.Rename(d.path("a.tmp"), d.path("a")))
			d.syncFolder(".")
		}, []string{"a=new"}},
		"removed":    {func(d disk) { d.syncFile(d.write("a", "back", 0)); testkit.NoError(d.t, os.Remove(d.path("a"))) }, []string{"a=back"}},
		"everything": {func(d disk) { d.write("a", "kept", 0); d.Sync(); d.write("b", "lost", 0) }, []string{"a=kept"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := disk{powerfs.Mount(t), t}
			c.do(d)
			d.Fail()
			testkit.EqualSlices(t, d.files(), c.want, "files")
		})
	}
}

func (d disk) syncFile(file *os.File) { testkit.NoError(d.t, file.Sync()) }

func (d disk) syncFolder(name string) {
	folder := testkit.Must(os.Open(d.path(name)))(d.t)
	defer func() { _ = folder.Close() }()
	d.syncFile(folder)
}

func (d disk) more(file *os.File, text string) { testkit.Must(file.WriteString(text))(d.t) }
