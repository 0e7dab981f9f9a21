//go:build powerloss

package powerfs

import (
	"maps"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Disk is a mounted disk.
type Disk struct {
	Folder string // where it is mounted

	mu       sync.Mutex
	nodes    map[uint64]*node
	newest   uint64                     // the highest number of a node
	renamed  map[*node]bool             // folders whose names have changed since the last sync
	listings map[uint64][]fuse.DirEntry // of open folders
}

// Mount mounts an empty disk until the test ends.
func Mount(t testing.TB) *Disk {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Fatalf("look for FUSE: %v\nload the kernel module (modprobe fuse), or start the container with --device /dev/fuse --cap-add SYS_ADMIN", err)
	}
	root := &node{number: fuse.FUSE_ROOT_ID, mode: syscall.S_IFDIR | 0o700, names: make(map[string]*node), durableNames: make(map[string]*node)}
	d := &Disk{
		Folder: t.TempDir(), nodes: map[uint64]*node{root.number: root}, newest: root.number,
		renamed: make(map[*node]bool), listings: make(map[uint64][]fuse.DirEntry),
	}
	server, err := fuse.NewServer(requests{fuse.NewDefaultRawFileSystem(), d}, d.Folder, &fuse.MountOptions{DirectMount: true, Name: "powerfs", DisableXAttrs: true, DisableReadDirPlus: true})
	if err != nil {
		t.Fatalf("mount a disk with FUSE: %v\nrun the test as root, or install fusermount3: apt-get install -y fuse3", err)
	}
	go server.Serve()
	testkit.NoError(t, server.WaitMount())
	t.Cleanup(func() { testkit.NoError(t, server.Unmount()) })
	return d
}

// Fail discards everything that was not synced.
func (d *Disk) Fail() {
	d.mu.Lock()
	defer d.mu.Unlock()
	root := d.nodes[fuse.FUSE_ROOT_ID]
	clear(d.nodes)
	clear(d.renamed)
	d.restore(root)
}

func (d *Disk) restore(n *node) {
	d.nodes[n.number] = n
	n.restore()
	for _, child := range n.names {
		d.restore(child)
	}
}

// Sync makes everything durable, as time does.
func (d *Disk) Sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.nodes {
		d.sync(n)
	}
}

// sync makes the bytes of a file durable, and all names.
func (d *Disk) sync(n *node) {
	n.sync()
	for folder := range d.renamed {
		folder.durableNames = maps.Clone(folder.names)
	}
	clear(d.renamed)
}
