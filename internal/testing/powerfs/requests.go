//go:build powerloss

//nolint:revive // fuse.RawFileSystem documents its methods
package powerfs

import (
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// requests answers the kernel about a disk.
type requests struct {
	fuse.RawFileSystem // answers ENOSYS to what is missing here
	*Disk
}

// with calls do for the node of a number, alone.
func (d *Disk) with(number uint64, do func(*node) fuse.Status) fuse.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[number]
	if n == nil {
		return fuse.Status(syscall.ESTALE) // lost with the power
	}
	return do(n)
}

// answer describes a node. The kernel caches neither names nor attributes nor pages, so it notices what Fail changes.
func answer(n *node, out *fuse.EntryOut) fuse.Status {
	out.NodeId = n.number
	n.attributes(&out.Attr)
	return fuse.OK
}

func (d requests) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return d.with(header.NodeId, func(folder *node) fuse.Status {
		if child := folder.names[name]; child != nil {
			return answer(child, out)
		}
		return fuse.ENOENT
	})
}

func (d requests) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return d.with(in.NodeId, func(n *node) fuse.Status {
		n.attributes(&out.Attr)
		return fuse.OK
	})
}

// SetAttr changes nothing but the size.
func (d requests) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return d.with(in.NodeId, func(n *node) fuse.Status {
		if size, given := in.GetSize(); given {
			n.truncate(int64(size))
		}
		n.attributes(&out.Attr)
		return fuse.OK
	})
}

func (d requests) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return d.create(in.NodeId, name, &node{mode: syscall.S_IFDIR | in.Mode, names: make(map[string]*node), durableNames: make(map[string]*node)}, out)
}

func (d requests) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	return d.create(in.NodeId, name, &node{mode: syscall.S_IFREG | in.Mode, fresh: make(map[int]bool)}, &out.EntryOut)
}

func (d *Disk) create(in uint64, name string, created *node, out *fuse.EntryOut) fuse.Status {
	return d.with(in, func(folder *node) fuse.Status {
		if folder.names[name] != nil {
			return fuse.Status(syscall.EEXIST)
		}
		d.newest++
		created.number, created.changed = d.newest, time.Now()
		d.nodes[created.number] = created
		d.name(folder, name, created)
		return answer(created, out)
	})
}

// name gives a name of a folder to a node, or to none.
func (d *Disk) name(folder *node, name string, n *node) {
	if folder.names[name] = n; n == nil {
		delete(folder.names, name)
	}
	folder.changed = time.Now()
	d.renamed[folder] = true
}

func (d requests) Unlink(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	return d.with(header.NodeId, func(folder *node) fuse.Status {
		if len(folder.names[name].names) > 0 { // the kernel has looked the name up
			return fuse.Status(syscall.ENOTEMPTY)
		}
		d.name(folder, name, nil) // an open file stays in nodes until the power fails
		return fuse.OK
	})
}

func (d requests) Rmdir(c <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return d.Unlink(c, in, name)
}

func (d requests) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return d.with(in.NodeId, func(source *node) fuse.Status {
		moved, target := source.names[from], d.nodes[in.Newdir]
		if in.Flags != 0 || target == nil {
			return fuse.EINVAL
		}
		d.name(source, from, nil)
		d.name(target, to, moved)
		return fuse.OK
	})
}

func (d requests) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	return d.with(in.NodeId, func(n *node) fuse.Status {
		if in.Flags&syscall.O_TRUNC != 0 {
			n.truncate(0)
		}
		return fuse.OK
	})
}

func (d requests) Read(_ <-chan struct{}, in *fuse.ReadIn, buffer []byte) (read fuse.ReadResult, status fuse.Status) {
	status = d.with(in.NodeId, func(n *node) fuse.Status {
		read = fuse.ReadResultData(n.read(buffer, int64(in.Offset)))
		return fuse.OK
	})
	return read, status
}

func (d requests) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return uint32(len(data)), d.with(in.NodeId, func(n *node) fuse.Status {
		at := int64(in.Offset)
		if in.Flags&syscall.O_APPEND != 0 {
			at = n.now.size
		}
		n.write(data, at)
		if in.Flags&(syscall.O_SYNC|syscall.O_DSYNC) != 0 {
			d.sync(n)
		}
		return fuse.OK
	})
}

func (d requests) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return d.with(in.NodeId, func(n *node) fuse.Status {
		d.sync(n)
		return fuse.OK
	})
}

func (d requests) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return d.Fsync(c, in) }

// OpenDir lists a folder. Later changes do not change the listing.
func (d requests) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return d.with(in.NodeId, func(folder *node) fuse.Status {
		d.newest++
		out.Fh = d.newest
		for _, name := range slices.Sorted(maps.Keys(folder.names)) {
			child := folder.names[name]
			d.listings[out.Fh] = append(d.listings[out.Fh], fuse.DirEntry{Name: name, Mode: child.mode, Ino: child.number})
		}
		return fuse.OK
	})
}

func (d requests) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return d.with(in.NodeId, func(*node) fuse.Status {
		for left := d.listings[in.Fh][in.Offset:]; len(left) > 0 && out.AddDirEntry(left[0]); {
			left = left[1:]
		}
		return fuse.OK
	})
}

func (d requests) ReleaseDir(in *fuse.ReleaseIn) {
	d.with(in.NodeId, func(*node) fuse.Status {
		delete(d.listings, in.Fh)
		return fuse.OK
	})
}

// StatFs reports a disk of 16 GiB that is never full: JetStream measures the disk.
func (d requests) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const blocks = 16 << 30 / pageSize
	*out = fuse.StatfsOut{Blocks: blocks, Bfree: blocks, Bavail: blocks, Bsize: pageSize, Frsize: pageSize, NameLen: 255}
	return fuse.OK
}
